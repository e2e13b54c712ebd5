"""Programs of this machine that the doctor asks: gcloud and Docker."""

import subprocess
from typing import Final

from engine.children import ended

_ANSWER_LIMIT_S: Final = 20.0


def answer_of(program: str, *words: str) -> subprocess.CompletedProcess[str] | None:
    """Return how a command ended; None if it could not be run or did not end within 20 s."""
    try:
        return ended([program, *words], limit_s=_ANSWER_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return None
