"""Device and host memory of a deployment."""
