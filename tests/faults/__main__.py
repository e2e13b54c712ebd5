"""Run planted faults, and print the share that the tests catch: `python -m tests.faults [ROOM ...] [--write FILE]`.

A room is a folder of this one, and each of its patches is one fault: a sentence of behaviour that the fault breaks, the test files that judge it, and
the change. The files are fixed, so that shares of two commits can be compared. They are the nearest ones in the import graph:

- of the provider, its own suite, which reaches every module through its service;
- otherwise the test files that import the changed module, or else those that import it through one module of its folder, or of the folder above.

Of these files the fastest are listed that take 30 s together on two busy cores. Tests marked `long` or `law` do not run.
A file that a later commit removes is skipped. If a patch no longer applies, plant its fault again from the sentence.

Answers: `caught` (tests failed), `survived` (all passed), `unknown` (time over, no test, tests that fail without a fault, or no patch that applies).
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
ROOMS = (
    "memory",
    "lifecycle",
    "path_guard",
    "cloud_run_limits",
    "engine",
    "agreement",
    "localcloud",
)
LIMIT_S = 60.0
ANSWERS = {0: "survived", 1: "caught"}
"""By pytest's exit code. Every other one says nothing about a fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One patch."""

    name: str
    file: Path
    sentence: str
    tests: tuple[str, ...]


def read(room: str, file: Path) -> Fault:
    """Return the fault in a patch file."""
    sentence, tests, *_ = file.read_text(encoding="utf-8").splitlines()
    return Fault(f"{room}/{file.stem}", file, sentence, tuple(tests.removeprefix("Tests: ").split()))


def faults(rooms: Sequence[str] = ROOMS) -> list[Fault]:
    """Return the faults of rooms."""
    return [read(room, file) for room in rooms for file in sorted((FOLDER / room).glob("*.patch"))]


def copied(target: Path) -> Path:
    """Copy the checkout's tracked files, with their uncommitted changes."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def environment(copy: Path) -> dict[str, str]:
    """Return the environment in which the copy's modules are imported, not the checkout's, which a path file of .venv names."""
    paths = [copy, copy / "packages", copy / "packages" / "gcp-tpu"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "GIT_CEILING_DIRECTORIES": str(copy.parent)}


def applied(copy: Path, fault: Fault, *options: str) -> bool:
    """Apply a patch or, with -R, revert it. Drop compiled modules, whose time and size may be those of the changed file."""
    done = subprocess.run(["git", "apply", *options, fault.file], cwd=copy, env=environment(copy), check=False)
    for name in re.findall(r"^\+\+\+ b/(.+)$", fault.file.read_text(encoding="utf-8"), re.MULTILINE):
        for compiled in (copy / name).parent.glob(f"__pycache__/{Path(name).stem}.*"):
            compiled.unlink()
    return done.returncode == 0


def run_tests(copy: Path, tests: Sequence[str], *options: str, limit_s: float | None) -> tuple[int | None, str]:
    """Run test files of the copy. Return pytest's exit code and output; the code is None if the time is over."""
    fixed = ["-m", "pytest", "-c", "pyproject.toml", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m"]
    command = [sys.executable, *fixed, "not law", *options, *tests]
    with tempfile.TemporaryFile("w+") as output:
        # Some tests leave children, which end with their group.
        child = subprocess.Popen(
            command, cwd=copy, env=environment(copy), stdout=output, stderr=output, start_new_session=True
        )
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(limit_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        output.seek(0)
        return code, output.read().strip()


def judged(copy: Path, fault: Fault, red: frozenset[str]) -> tuple[str, str]:
    """Return the answer about a fault, and the reason of an unknown one."""
    tests = [name for name in fault.tests if (copy / name).is_file()]
    failing = sorted(red.intersection(tests))
    if failing or not tests:
        return "unknown", f"without the fault, {', '.join(failing)} fails" if failing else "no test file is left"
    if not applied(copy, fault):
        return "unknown", "the patch does not apply"
    try:
        code, output = run_tests(copy, tests, "-x", limit_s=LIMIT_S)
    finally:
        applied(copy, fault, "-R")
    if code is None:
        return "unknown", f"the tests took more than {LIMIT_S:.0f} s"
    answer = ANSWERS.get(code, "unknown")
    return answer, output.rpartition("\n")[2] if answer == "unknown" else ""


def main() -> None:
    """Judge every fault of the rooms, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Run planted faults.")
    parser.add_argument("rooms", metavar="ROOM", nargs="*", help=f"room: {', '.join(ROOMS)}; default: all")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the answers as JSON")
    given = parser.parse_args()
    found, answers = faults(given.rooms or ROOMS), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="gemma-faults-") as folder:
        copy, began_s = copied(Path(folder).resolve()), time.monotonic()
        union = sorted({name for fault in found for name in fault.tests if (copy / name).is_file()})
        _, output = run_tests(copy, union, "--tb=no", "-rfE", limit_s=None)
        red = frozenset(re.findall(r"^(?:FAILED|ERROR) ([^\s:]+\.py)", output, re.MULTILINE))
        summary = output.rpartition("\n")[2]
        print(f"without a fault, {time.monotonic() - began_s:.0f} s: {summary}", flush=True)
        for fault in found:
            began_s = time.monotonic()
            answer, why = judged(copy, fault, red)
            answers[fault.name] = answer
            print(f"{answer:<9}{fault.name}, {time.monotonic() - began_s:.0f} s{f': {why}' if why else ''}", flush=True)
    for room in (*dict.fromkeys(name.partition("/")[0] for name in answers), ""):
        these = [answer for name, answer in answers.items() if name.startswith(room)]
        print(f"{room or 'all'}: {these.count('caught')} of {len(these)} caught, {these.count('unknown')} unknown")
    if given.write:
        given.write.write_text(f"{json.dumps(answers, indent=2, sort_keys=True)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
