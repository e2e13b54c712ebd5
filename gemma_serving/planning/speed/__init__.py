"""Start time and speed of a deployment."""
