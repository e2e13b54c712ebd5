"""Read and write `results/STACK.measured.json`. Writers hold a lock, and a reader sees either the old file or the new one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import to_json
from engine.atomic_file import KeptFileError, change_file, read_kept
from engine.runner import project_folder
from scripts.cli.measured.schema import SCHEMA_VERSION, MeasuredFile

FOLDER: Final = "results"


class NotKeptError(ScriptError):
    """Measured figures could not be written."""


def measured_path(stack: str) -> Path:
    """Return the file of a stack."""
    return project_folder() / FOLDER / f"{stack.rpartition('/')[2]}.measured.json"


def read_measured(stack: str) -> MeasuredFile:
    """Return a stack's measurements; empty if the file does not exist.

    Raises CommandRefusedError if the file cannot be read or has another format.
    """
    path = measured_path(stack)
    try:
        found = read_kept(path, MeasuredFile, SCHEMA_VERSION)
    except KeptFileError as error:
        raise CommandRefusedError(f"{path} {error}. Move it away and run smoke or bench again.") from None
    return found or MeasuredFile(schema_version=SCHEMA_VERSION, stack=stack)


def change_measured(stack: str, change: Callable[[MeasuredFile], MeasuredFile]) -> Path:
    """Change a stack's file and return its path. Raises NotKeptError and leaves an unreadable file unchanged."""
    path = measured_path(stack)
    try:
        change_file(path, lambda: json.dumps(to_json(change(read_measured(stack))), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise NotKeptError(f"results not recorded: cannot write {path} ({error.strerror}).") from None
    except CommandRefusedError as error:
        raise NotKeptError(f"results not recorded: {error}") from None
    return path
