"""The path guard of a server with an API key: what vLLM is told, and how the guard's file is found in the container.

The program on a TPU machine and the starter of a Cloud Run container write the file (`vm_agent/path_guard.py`) and put its folder on
PYTHONPATH. They know from the server's arguments that it is asked for. Their text includes this module, so it has to run on Python 3.10.
"""

from collections.abc import Sequence
from typing import Final

GUARD_MODULE: Final = "gemma_serving_path_guard"
"""Name of the file in the container, without its ending. No package of the image has it."""
GUARD_ARGUMENT: Final = f"--middleware={GUARD_MODULE}.PathGuard"
"""Argument of `vllm serve` that puts the guard in front of all its paths."""
PYTHON_PATH: Final = "PYTHONPATH"


def is_guarded(arguments: Sequence[str]) -> bool:
    """Return whether a server's arguments name the guard."""
    return GUARD_ARGUMENT in arguments


def python_path(folder: str, present: str) -> str:
    """Return a PYTHONPATH with the guard's folder first, so that no other module takes its name."""
    return f"{folder}:{present}" if present else folder
