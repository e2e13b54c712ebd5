"""Prometheus' rule engine for the tests of alerts: built from Go modules once per content and user (one to two minutes on two cores)."""

import hashlib
import sys
from functools import cache
from pathlib import Path
from typing import Final

from localcloud.go_build import (
    GoBuildError,
    GoProgram,
    cache_folder,
    compile_program,
    compiler,
    locked,
    new_folder,
)

NO_GO: Final = "`go`, needed to build the evaluator, is not on PATH. Install Go 1.26 or newer."
_SOURCES: Final = Path(__file__).with_name("golang")
_NAME: Final = "evaluator"
_PROGRAM: Final = GoProgram(label="rules", name="the evaluator", package=".", packages=842)


class EvaluatorMissingError(Exception):
    """No evaluator can run here. The message is one sentence with what to do."""


def found() -> Path | None:
    """Return the program that an earlier build of this content stored in the user's cache folder, or None."""
    path = _folder() / _NAME
    return path if path.is_file() else None


def ensure() -> Path:
    """Return the program, after building it if necessary. Raises EvaluatorMissingError without Go, or with the compiler's last lines."""
    known = found()
    if known is not None:
        return known
    go = compiler()
    if go is None:
        raise EvaluatorMissingError(NO_GO)
    with locked(_root()):
        if found() is None:
            print("rules: building the evaluator of alerts, one to two minutes, once", file=sys.stderr, flush=True)
            try:
                _build(go, _folder())
            except GoBuildError as error:
                raise EvaluatorMissingError(str(error)) from error
    return _folder() / _NAME


def _build(go: str, into: Path) -> None:
    """Build the program into a new folder, which is created atomically. The modules (0.9 GB) are deleted afterwards."""
    with new_folder(into, _SOURCES) as folder:
        compile_program(go, _PROGRAM, folder.module, folder.result / _NAME, modules=folder.modules)


def _root() -> Path:
    return cache_folder("rules")


@cache
def _key() -> str:
    """Return a short digest of the module's files: a changed line or module is another program."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _folder() -> Path:
    return _root() / _key()
