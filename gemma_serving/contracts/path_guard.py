"""The path guard of a server with an API key (vm_agent/path_guard.py)."""

from collections.abc import Sequence
from typing import Final

GUARD_MODULE: Final = "gemma_serving_path_guard"
"""Name of the file in the container, without its extension. No package of the image uses this name."""
GUARD_ARGUMENT: Final = f"--middleware={GUARD_MODULE}.PathGuard"
PYTHON_PATH: Final = "PYTHONPATH"
API_KEY_VARIABLE: Final = "VLLM_API_KEY"
"""Variable of the server with the API key. A rotated key must not be accepted again."""

OPEN_PATH_VARIABLE: Final = "GEMMA_SERVING_OPEN_PATH"
"""Variable of the server with one more path without a key, besides /health."""


def is_guarded(arguments: Sequence[str]) -> bool:
    """Return whether a server's arguments name the guard."""
    return GUARD_ARGUMENT in arguments


def python_path(folder: str, present: str) -> str:
    """Return a PYTHONPATH with the guard's folder first, so no other module can take its name."""
    return f"{folder}:{present}" if present else folder
