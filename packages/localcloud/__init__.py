"""A local stand-in for the parts of Google Cloud that the stacks use; see docs/local-cloud.md for what it simulates and what it does not."""
