"""`python -m authors.accuracy`: predicted and measured values, for the authors of the planner."""
