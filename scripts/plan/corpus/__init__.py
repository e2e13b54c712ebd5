"""Measured starts and speeds that the planner is held against, and what a person adds with `plan learn`."""
