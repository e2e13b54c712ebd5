"""What the project has to have before its resources: APIs, grants that hold, names that are free."""
