"""Hooks of the Pulumi engine."""
