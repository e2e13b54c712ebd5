"""`gemma stage_model`: copy a model to a stack's bucket."""
