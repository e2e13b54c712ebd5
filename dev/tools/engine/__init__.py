"""Provide a Pulumi engine: from PATH, the official release, or a build from Go modules."""
