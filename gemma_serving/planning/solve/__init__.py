"""Search for a deployment, and output of plans."""
