"""A local stand-in for the parts of Google Cloud that the stacks use. See docs/local-cloud.md for its scope."""
