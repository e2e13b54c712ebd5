"""Check that a project is ready for a stack, without changing it."""
