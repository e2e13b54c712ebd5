"""`gemma plan`: plan a deployment before it costs anything."""
