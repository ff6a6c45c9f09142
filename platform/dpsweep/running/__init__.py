"""Running: all that happens between a launch and its end."""
