"""Deploy a stack, prove that it serves, and roll back if it does not."""
