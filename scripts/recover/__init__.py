"""Import existing resources of a stack that are missing from its state."""
