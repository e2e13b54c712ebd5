"""Prove that a project is ready for a stack, without changing anything."""
