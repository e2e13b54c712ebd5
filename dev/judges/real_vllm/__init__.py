"""Comparison of the benchmark and the smoke checks with a real vLLM on this machine's processor, and with vLLM's own benchmark."""
