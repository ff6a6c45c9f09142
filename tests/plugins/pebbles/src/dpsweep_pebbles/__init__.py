"""What a package outside dpsweep can add to it."""
