"""What a deployment takes of a device and of its host."""
