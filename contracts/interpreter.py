"""Refuse an interpreter that lacks the project's packages, with one sentence instead of a traceback."""

import sys
from importlib.util import find_spec
from pathlib import Path

from contracts.exit_codes import ExitCode


def require(module: str) -> None:
    """Exit with code 2 if this interpreter cannot import a module of the locked requirements."""
    if find_spec(module) is not None:
        return
    root = Path(__file__).resolve().parents[1]
    has_environment = (root / ".venv" / "bin" / "python").exists()
    fix = f"Run `{root / 'gemma'}` or `.venv/bin/python`" if has_environment else f"Run `make -C {root} setup`"
    print(f"{sys.executable} lacks the packages of this project. {fix}.", file=sys.stderr)
    raise SystemExit(ExitCode.REFUSED)
