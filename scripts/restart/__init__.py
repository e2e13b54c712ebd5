"""`gemma restart`: restart a deployed server without changing its settings."""
