"""Detect a local cloud. Every command with output labels it as simulated."""

import os


def is_simulated() -> bool:
    """Return whether the local cloud replaces Google."""
    return "LOCALCLOUD_URL" in os.environ
