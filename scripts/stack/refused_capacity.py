"""The answers of the zones to the last request for capacity, if none granted it: the provider deletes such requests, so Google has no answer left."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gemma_serving.engine.atomic_file import write_private

FOLDER: Final = Path(".work") / "capacity"
_START: Final = "No zone granted "
_ZONES: Final = ("  ", "Zones not tried")
"""Starts of the provider's error (`gcp_tpu_provider.capacity`), and of its lines about zones."""


def remember_refusal(stack: str, errors: Sequence[str]) -> None:
    """Record the provider's error about capacity, if it is among the errors of an `up`."""
    for error in errors:
        _, start, rest = error.partition(_START)
        if start:
            FOLDER.mkdir(parents=True, exist_ok=True)
            write_private(_path(stack), f"{start}{rest}")


def forget_refusal(stack: str) -> None:
    """Record that an `up` begins: an older answer says nothing about it."""
    _path(stack).unlink(missing_ok=True)


def remembered_refusal(stack: str) -> Sequence[str]:
    """Return when no zone granted capacity, then the answer of each, as sentences; empty if no `up` of this folder recorded it."""
    try:
        headline, *lines = _path(stack).read_text(encoding="utf-8").splitlines()
        at = datetime.fromtimestamp(_path(stack).stat().st_mtime, UTC)
    except (OSError, ValueError):
        return ()
    zones = [" ".join(line.split()) for line in lines if line.startswith(_ZONES)]
    return [f"`gemma up` of {at:%Y-%m-%d %H:%M} UTC: {headline}", *zones]


def _path(stack: str) -> Path:
    return FOLDER / f"{stack}.txt"
