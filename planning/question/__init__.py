"""What is asked of the planner: options, workload, deployment; and the same without gaps."""
