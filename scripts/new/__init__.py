"""Make the settings file of a new stack from the planner."""
