"""Costs, answers and leftovers of an evening in one file, so that a later run goes on where a killed one stopped."""

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from localcloud.json_values import as_object
from localcloud.trials.trial_options import TryRefusedError


@dataclass(slots=True)
class Journal:
    """The state of an evening. Each change is on the disk before its effect begins."""

    path: Path
    project: str
    answered: dict[str, str] = field(default_factory=dict[str, str])
    """Entry -> the text of `tried`."""
    spent_usd: dict[str, float] = field(default_factory=dict[str, float])
    """Trial or stack -> its maximum cost, once for each start."""
    later: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """Entry -> the words of its requests, for the second run."""
    runs: list[str] = field(default_factory=list[str])
    """Ids of the runs of this evening. Only what carries one of them is deleted."""
    stacks: list[str] = field(default_factory=list[str])
    """Stacks that may be deployed."""
    apis_off: list[str] = field(default_factory=list[str])
    """APIs that a trial may have disabled."""
    is_open: bool = False
    """True until a run has deleted everything. After a kill it stays."""
    lock: int = -1
    """Descriptor of the lock. Child processes inherit it, so it is free only after the last one has exited."""

    @classmethod
    def open(cls, path: Path, project: str, report: Callable[[str], None]) -> "Journal":
        """Read the file and lock it. Wait while another run, or a command that a killed run started, has the lock.

        Raises TryRefusedError for the journal of another project.
        """
        lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another run, or a command that it started, is still running. Waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            read: dict[str, Any] = dict(as_object(json.loads(path.read_text(encoding="utf-8"))))
        except FileNotFoundError:
            read = {}
        if read.setdefault("project", project) != project:
            os.close(lock)
            raise TryRefusedError(f"{path} is the journal of another project. Pass another file with --out.")
        return cls(path=path, lock=lock, **read)

    @property
    def usd(self) -> float:
        """Return the maximum cost of everything that was started."""
        return sum(self.spent_usd.values())

    def spend(self, name: str, usd: float) -> None:
        """Record the maximum cost of a trial or stack before it starts."""
        self.spent_usd[name] = round(self.spent_usd.get(name, 0) + usd, 2)
        self.write()

    def set(self, what: Literal["stacks", "apis_off"], name: str, *, exists: bool) -> None:
        """Record in `stacks` or `apis_off` that something may exist, or that it does not."""
        names = self.stacks if what == "stacks" else self.apis_off
        names[:] = [each for each in names if each != name] + ([name] if exists else [])
        self.write()

    def write(self) -> None:
        """Write the file."""
        kept = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in {"path", "lock"}}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        new.replace(self.path)

    def close(self) -> None:
        """Release the lock."""
        os.close(self.lock)
