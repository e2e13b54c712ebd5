"""The manifest of a staged checkpoint."""

from typing import Final

MANIFEST: Final = "gemma-serving-manifest.json"
"""Written last: a prefix with a manifest holds the whole checkpoint."""
