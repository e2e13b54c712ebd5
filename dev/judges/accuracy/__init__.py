"""Predicted and measured values, for the authors of the planner."""
