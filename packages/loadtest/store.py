"""Output folder of a sweep.

`run.json` contains the settings. `results.jsonl` has one line per point, written and synchronized when the point finishes. An incomplete
last line is dropped, and the later of two lines of one point counts.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from loadtest.errors import SweepError

RUN: Final = "run.json"
RESULTS: Final = "results.jsonl"
LOCK: Final = ".lock"
FIXED: Final = (
    "url",
    "model",
    "endpoint",
    "input_tokens",
    "output_tokens",
    "requests",
    "duration_s",
    "seed",
    "slo",
    "poisson",
    "traffic",
)
"""Settings that a continued sweep cannot change. Loads may be added."""


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the results of a folder, one per point, in the order of their first appearance.

    Raises SweepError if the folder has none, or if a line other than the last is damaged.
    """
    path = folder / RESULTS
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SweepError(f"Cannot read {path}: {error.strerror}. Pass the folder of a sweep.") from None
    found: dict[str, dict[str, Any]] = {}
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            result = cast("dict[str, Any]", json.loads(line))
            key = str(result["point"]["key"])
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break  # the write was interrupted
            raise SweepError(f"{path}, line {number} is not a result. Restore the file or use a new folder.") from None
        found[key] = result
    return list(found.values())


def read_run(folder: Path) -> dict[str, Any]:
    """Return the settings of a sweep, or an empty object if the folder has none."""
    try:
        return cast("dict[str, Any]", json.loads((folder / RUN).read_bytes()))
    except (OSError, ValueError):
        return {}


class ResultStore:
    """An output folder open for writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / RESULTS
        self.run: dict[str, Any] = {}
        """Settings as last written."""

    def done(self) -> dict[str, dict[str, Any]]:
        """Return the measured points: those with at least one complete response."""
        if not self._path.exists():
            return {}
        return {result["point"]["key"]: result for result in read_results(self.folder) if result["completed"] > 0}

    def append(self, result: Mapping[str, Any]) -> None:
        """Write one point. It is on disk when this returns."""
        line = json.dumps(result, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with open(self._path, "ab", opener=_without_links) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Write the settings atomically."""
        self.run = dict(run)
        write_whole(self.folder / RUN, json.dumps(run, indent=2) + "\n")

    def fix(self) -> None:
        """Drop an incomplete last line."""
        if not self._path.exists():
            return
        raw = self._path.read_bytes()
        if raw and not raw.endswith(b"\n"):
            with open(self._path, "r+b", opener=_without_links) as file:
                file.truncate(raw.rfind(b"\n") + 1)


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, so a reader sees the old text or the new one."""
    draft = path.with_name(f".{path.name}.new")
    with open(draft, "w", encoding="utf-8", opener=_without_links) as file:
        file.write(text)
    draft.replace(path)


def _without_links(path: str, flags: int) -> int:
    """Open a file for writing, but not through a link, which a checkout can bring. Raises OSError."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def open_store(folder: Path, run: Mapping[str, Any], *, resume: bool) -> Generator[ResultStore]:
    """Open a folder for exclusive use by one sweep.

    Raises SweepError if it has results and `resume` is False, if they belong to another sweep, or if another process writes there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / LOCK, "w", opener=_without_links)  # noqa: SIM115 - as above; closed below
    except OSError as error:
        raise SweepError(f"Cannot write to --out {folder}: {error.strerror}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SweepError(f"--out {folder} is in use by another sweep. Wait for it or use another folder.") from None
        store = ResultStore(folder)
        if (folder / RESULTS).exists():
            if not resume:
                raise SweepError(
                    f"--out {folder} already has results. Add --resume to continue that sweep, or use another folder."
                )
            _same_sweep(folder, run)
            store.fix()
        store.write_run(run)
        yield store


def _same_sweep(folder: Path, run: Mapping[str, Any]) -> None:
    before = read_run(folder)
    for name in FIXED:
        if name in before and before[name] != run.get(name):
            raise SweepError(
                f"--resume: the sweep in {folder} has {name} {json.dumps(before[name])}, but this one has {json.dumps(run.get(name))}. Use another folder."
            )
