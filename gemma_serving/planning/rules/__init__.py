"""Rules: problems of a deployment, and their remedies."""
