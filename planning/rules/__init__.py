"""Rules: what is wrong with a deployment, and the remedies."""
