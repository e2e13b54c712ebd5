"""Prometheus' rule engine as a child process: one JSON object per line in each direction. Times are milliseconds since 1970.

| request | response |
| --- | --- |
| `{"op": "check", "expr": E}` | nothing |
| `{"op": "rule", "name": N, "expr": E, "forS": S, "labels": {}}` | nothing; a rule of that name is replaced |
| `{"op": "scrape", "atMs": T, "text": EXPOSITION, "labels": {}, "up": true}` | nothing; no `up` is stored without the key |
| `{"op": "eval", "atMs": T, "names": [N]}` | `alerts` pending and firing, `errors` by rule |

Any request can be answered with `{"error": TEXT}`, in Prometheus' own words.

The program is built from Go modules once per content and user (one to two minutes on two cores): used where it is built, built where the
environment says so, otherwise a skip with the command.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from localcloud.go_build import GoProgram, cache_folder, compile_program, compiler, locked, new_folder

BUILD: Final = "LOCALCLOUD_EVALUATOR"
"""`build` compiles the evaluator if it is missing: `.ci/run`, `make long` and the workflows set it, so that only a first run at home skips."""
NOT_BUILT: Final = (
    "alert expressions: their evaluator is not built. To build it (Go 1.26, one to four minutes, once), run "
    f"`{BUILD}=build make test-packages TESTS=packages/localcloud/tests/rules`"
)
_SOURCES: Final = Path(__file__).with_name("golang")
_PROGRAM: Final = GoProgram(label="rules", name="the evaluator", package=".", packages=842)


def answers(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the evaluator's response to each request, of a process with series of its own."""
    lines = "".join(f"{json.dumps(request)}\n" for request in requests)
    with TemporaryDirectory(prefix="localcloud-") as folder:
        done = subprocess.run(
            [program()], input=lines, env={"TMPDIR": folder}, check=True, stdout=subprocess.PIPE, text=True
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def program() -> Path:
    """Return the program. Skip the test if it is not built and nothing says to build it; a build that fails is an error."""
    path = _path()
    if not path.is_file() and os.environ.get(BUILD) != "build":
        pytest.skip(NOT_BUILT)
    with locked(cache_folder("rules")):
        if not path.is_file():
            _build(path)
    return path


def _path() -> Path:
    """Return where a build of this content is stored: a changed line or module is another program."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return cache_folder("rules") / digest.hexdigest()[:16] / "evaluator"


def _build(path: Path) -> None:
    """Build the program into a new folder, which is created atomically. The modules (0.9 GB) are deleted afterwards."""
    go = compiler()
    assert go is not None, "`go`, needed to build the evaluator, is not on PATH. Install Go 1.26 or newer."
    print("rules: building the evaluator of alerts, one to two minutes, once", file=sys.stderr, flush=True)
    with new_folder(path.parent, _SOURCES) as folder:
        compile_program(go, _PROGRAM, folder.module, folder.result / path.name, modules=folder.modules)
