"""`gemma save_token`: store a secret in a stack's settings."""
