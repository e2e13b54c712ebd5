"""Cost of a deployment, and the subject that rules examine."""
