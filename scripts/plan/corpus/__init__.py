"""Measured starts and speeds to check the planner against, plus those added by `plan learn`."""
