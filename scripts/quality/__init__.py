"""Share of a small fixed set of questions that a server answers right, and the comparison of deployments by it."""
