"""A local cloud that can be killed and started again, and what stands in it: read from its database, without the code that is tested.

`snapshot` is every document of the cloud, so that whatever was not there before a cycle is a leftover, and whatever changed was touched.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.engine.conftest import ROOT, Workspace, cloud_environment, copy_project
from tests.kills import processes

PROJECT: Final = "local-project"
_QUEUED: Final = "tpu.queuedResources"
_PASSING: Final = (
    "counters",
    "iam.serviceAgents",
    "logging.entries",
    "meta",
    "oauth.",
    "projects",
    "registry.pulls",
    "run.used",
    "serviceusage.",
    "tpu.requests",
)
"""Kinds that are no resources of anybody: logs, operations, counters, enabled APIs. Their beginnings."""
_OPERATIONS: Final = ".operations"
_VARYING: Final = frozenset(
    {"etag", "generation", "metageneration", "updateTime", "updated", "at_s", "from_s", "lastTransitionTime", "_url"}
)
"""Keys that may change without anybody's touch. A local cloud that starts again starts every revision again, at another address."""
_RELEASED: Final = "_freeAtS"
"""Of an address that Google holds for hours after its service."""
_GONE_STATES: Final = frozenset({"DELETING"})
_START_S: Final = 60

Documents = dict[tuple[str, str], Any]


@dataclass
class World:
    """A workspace with its local cloud."""

    folder: Path
    workspace: Workspace = field(init=False)
    options: tuple[str, ...] = ()
    mark: str = "cloud"
    process: "subprocess.Popen[bytes]" = field(init=False)

    def open(self) -> None:
        """Copy the project and start the cloud."""
        copy_project(self.folder / "project")
        self.workspace = Workspace(self.folder, {})
        self.start()

    def start(self) -> None:
        """Start the cloud on its state, and take the environment that it gives."""
        hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
        base = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        with (self.folder / "serve.log").open("a") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "localcloud",
                    "serve",
                    "--providers=standin",
                    "--scenario",
                    "prepared",
                    "--state",
                    str(self.folder / "cloud"),
                    *self.options,
                ],
                cwd=ROOT,
                env=base,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.workspace.environment = {**base, **cloud_environment(self.folder)}

    def kill(self, name: str) -> None:
        """Kill the cloud, wait for its end, and start it again on the same state."""
        processes.send(self.process.pid, name)
        self.process.wait(timeout=_START_S)
        self.start()

    def close(self) -> None:
        """Stop the cloud."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=_START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    # Commands

    def begin(self, words: "list[str]", mark: str, log: Path) -> "subprocess.Popen[bytes]":
        """Start a command in a group of its own, with a mark."""
        with log.open("wb") as stream:
            return subprocess.Popen(
                words,
                cwd=self.folder / "project",
                env={**self.workspace.environment, processes.MARK: mark},
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def pulumi(self, stack: str, *words: str) -> "list[str]":
        """Return a command line of the engine."""
        return [str(self.workspace.engine), *words, "--stack", stack, "--non-interactive"]

    def script(self, stack: str, name: str, *words: str) -> "list[str]":
        """Return a command line of a script."""
        return [sys.executable, "-m", f"scripts.{name}", "--stack", stack, *words]

    def locked(self, stack: str) -> bool:
        """Whether a lock of the stack is there."""
        locks = self.folder / "cloud" / "pulumi" / ".pulumi" / "locks" / "organization" / "gemma-serving" / stack
        return locks.is_dir() and any(locks.iterdir())

    # What stands in the cloud

    def calls(self) -> int:
        """Return how many calls changed something since `forget_calls`. Raises requests.ConnectionError while the cloud is dead."""
        rows = self.workspace.admin("requests")["requests"]
        return sum(1 for row in rows if row["method"] != "GET" and _changes(row))

    def forget_calls(self) -> None:
        """Empty the request log."""
        self.workspace.call("DELETE", "admin/requests")

    def request(self, verb: str, path: str, body: Any = None, **parameters: str) -> Any:
        """Call the cloud as its operator."""
        return self.workspace.call(verb, path, body, **parameters)

    def snapshot(self) -> Documents:
        """Return every document of every resource, without what varies by itself and what Google still holds of a deleted service."""
        rows = self._rows("SELECT kind, name, document FROM resources")
        found = {
            (kind, name): _without_varying(json.loads(document))
            for kind, name, document in rows
            if not kind.startswith(_PASSING) and not kind.endswith(_OPERATIONS)
        }
        return {key: document for key, document in found.items() if _RELEASED not in document}

    def queued(self, name: str) -> "list[str]":
        """Return the queued resources with this id that are not being deleted."""
        rows = self._rows(f"SELECT kind, name, document FROM resources WHERE kind = '{_QUEUED}'")  # noqa: S608 - a constant
        found = [(path, json.loads(document)) for _, path, document in rows if path.endswith(f"/{name}")]
        return [path for path, document in found if _state_of(document) not in _GONE_STATES]

    def _rows(self, query: str) -> "list[tuple[str, str, str]]":
        database = sqlite3.connect(f"file:{self.folder / 'cloud' / 'resources.sqlite'}?mode=ro", uri=True)
        try:
            return database.execute(query).fetchall()
        finally:
            database.close()

    def settled(self) -> Documents:
        """Return a snapshot that does not change any more."""
        last = self.snapshot()
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            time.sleep(0.5)  # two snapshots that are equal although time went by
            now = self.snapshot()
            if now == last:
                return now
            last = now
        return last


def _changes(row: "dict[str, Any]") -> bool:
    method = str(row.get("id") or "").rpartition(".")[2]
    return not method.startswith(("get", "list", "testIam", "batchGet", "aggregatedList"))


def _state_of(document: "dict[str, Any]") -> str:
    state = document.get("state")
    return str(state.get("state") if isinstance(state, dict) else state)


def _without_varying(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_varying(inner) for key, inner in value.items() if key not in _VARYING}
    if isinstance(value, list):
        return [_without_varying(inner) for inner in value]
    return value
