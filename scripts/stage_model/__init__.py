"""`python -m scripts.stage_model`: copy a model into a stack's bucket."""
