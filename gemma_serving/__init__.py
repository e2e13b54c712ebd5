"""Gemma 4 behind vLLM on Google Cloud: the namespace of every import."""
