"""Programs of this machine that the doctor runs: gcloud and Docker."""

import subprocess
from typing import Final

from engine.children import ended

_ANSWER_LIMIT_S: Final = 20.0


def answer_of(program: str, *words: str) -> subprocess.CompletedProcess[str] | None:
    """Run a command and return its result; None if it could not start or did not finish within 20 s."""
    try:
        return ended([program, *words], limit_s=_ANSWER_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return None
