"""Reusable component resources: each takes one frozen arguments object and an explicit provider, and knows nothing of stacks or settings."""
