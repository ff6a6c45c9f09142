"""What the device that trains changes: precision, layout and transfers."""
