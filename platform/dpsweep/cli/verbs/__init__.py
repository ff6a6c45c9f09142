"""One file for each verb that needs one."""
