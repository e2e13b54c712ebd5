"""Finds or makes a Pulumi engine: PATH, the official release, a build from Go modules, or a clear message."""
