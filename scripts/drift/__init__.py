"""Drift between state and cloud, and the GitHub issue that reports it."""
