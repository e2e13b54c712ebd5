"""Deploy a stack, check it, and roll back if a check fails."""
