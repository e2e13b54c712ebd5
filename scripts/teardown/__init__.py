"""Destroy a stack, delete what is left by the API, and prove that nothing is."""
