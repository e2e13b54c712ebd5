"""`python -m scripts.plan`: plan a deployment before it costs anything."""
