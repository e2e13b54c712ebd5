"""`python -m authors.accuracy`: predicted against measured figures, for the authors of the planner."""
