"""What happens between a launch and its end."""
