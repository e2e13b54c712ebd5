"""Measured starts and speeds to check the planner against."""
