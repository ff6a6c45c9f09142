"""Foundation of every room: errors, tables of names, files that survive a crash."""
