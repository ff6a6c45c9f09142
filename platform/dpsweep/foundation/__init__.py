"""What anybody may use: errors, tables of names, files that survive a crash."""
