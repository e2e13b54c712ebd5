"""Reusable component resources. Each takes one frozen arguments object and an explicit provider, and is independent of stacks and settings."""
