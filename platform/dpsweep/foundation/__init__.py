"""Foundation for everybody: errors, tables of names, files that survive a crash."""
