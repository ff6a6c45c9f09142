"""Methods that are not DP-SGD, and an event of their own."""
