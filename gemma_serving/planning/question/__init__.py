"""Inputs of the planner: options, workload and deployment, and the same with all defaults filled in."""
