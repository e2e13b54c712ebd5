"""Tell a local cloud from Google. Every command that shows something says so."""

import os


def is_simulated() -> bool:
    """Whether the local cloud answers instead of Google."""
    return "LOCALCLOUD_URL" in os.environ
