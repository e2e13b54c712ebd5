"""`python -m scripts.restart`: restart a deployed server without changing its settings."""
