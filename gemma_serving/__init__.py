"""Gemma 4 behind vLLM on Google Cloud: the namespace of every import."""

from typing import Final

VERSION: Final = "0.4.0"
"""Version of every distribution of the repository."""
