"""History of available capacity in `results/capacity.json`. Capacity is known only after a request, so results are stored.

The format is frozen: a change of meaning increments SCHEMA_VERSION. The file has no secrets and stays on this machine.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from cloud.capacity import QueuedResource
from contracts.capacity_states import GRANTED, WAITING
from contracts.errors import ScriptError
from contracts.fields import to_json
from engine.atomic_file import KeptFileError, change_file, read_kept
from engine.runner import project_folder
from planning.question.types import ProvisioningModel

FOLDER = "results"

SCHEMA_VERSION: Final = 1
KEPT_DAYS: Final = 90
"""Older entries are dropped because they no longer reflect the available capacity."""
Outcome = Literal["granted", "waiting", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """State of a request for one accelerator when a command last read it."""

    request: str
    """Full name of the queued resource."""
    created: str
    """Creation time (RFC 3339). Part of the identity, because names are reused."""
    zone: str
    accelerator: str
    """Name in the API, such as v5litepod-4."""
    provisioning: ProvisioningModel
    outcome: Outcome
    at: str
    """RFC 3339. `granted`: earliest possible time of the grant. `waiting`: last seen waiting. `failed`: first seen failed."""
    detail: str = ""
    """Google's error message for a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StockHistory:
    """The file."""

    schema_version: int = SCHEMA_VERSION
    sightings: tuple[Sighting, ...] = ()

    def latest(self, zone: str, accelerator: str, provisioning: ProvisioningModel) -> Sighting | None:
        """Return the newest sighting of one accelerator in a zone; None if it was never requested there."""
        wanted = (zone, accelerator, provisioning)
        found = (one for one in self.sightings if (one.zone, one.accelerator, one.provisioning) == wanted)
        return max(found, key=lambda one: datetime.fromisoformat(one.at), default=None)

    def with_requests(self, requests: Iterable[QueuedResource], now: datetime) -> "StockHistory":
        """Return the history with the current requests and without entries older than KEPT_DAYS."""
        known = {(one.request, one.created, one.accelerator): one for one in self.sightings}
        for request in requests:
            for seen in _sightings(request, now):
                key = (seen.request, seen.created, seen.accelerator)
                known[key] = _merged(known.get(key), seen)
        oldest = now - timedelta(days=KEPT_DAYS)
        kept = (one for one in known.values() if datetime.fromisoformat(one.at) >= oldest)
        return replace(self, sightings=tuple(sorted(kept, key=lambda one: (one.at, one.request, one.accelerator))))


class HistoryError(ScriptError):
    """The history cannot be read or written. The command continues without a history."""


def history_path() -> Path:
    """Return the path of the project's history file."""
    return project_folder() / FOLDER / "capacity.json"


def read_history() -> StockHistory:
    """Return the history, which is empty without a file. Raises HistoryError."""
    path = history_path()
    try:
        found = read_kept(path, StockHistory, SCHEMA_VERSION, check=_require_times)
    except KeptFileError as error:
        raise HistoryError(
            f"Cannot read the capacity history: {path} {error}. Move the file to start a new one."
        ) from None
    return found or StockHistory()


def _require_times(history: StockHistory) -> None:
    for one in history.sightings:
        datetime.fromisoformat(one.at)


def record_requests(requests: Iterable[QueuedResource], now: datetime) -> StockHistory:
    """Add this product's current requests to the file, and return the whole history. Raises HistoryError without a change."""
    ours = [request for request in requests if request.stack is not None]
    if not ours:
        return read_history()
    changed: list[StockHistory] = []

    def text() -> str:
        changed.append(read_history().with_requests(ours, now))
        return json.dumps(to_json(changed[0]), indent=1) + "\n"

    try:
        change_file(history_path(), text)
    except OSError as error:
        raise HistoryError(f"Cannot write the capacity history {history_path()}: {error.strerror}.") from None
    return changed[0]


def _sightings(request: QueuedResource, now: datetime) -> Iterable[Sighting]:
    outcome: Outcome
    at = now
    if request.state in GRANTED:
        # The grant was between the request's creation and now. The earlier time never overstates how recent it is.
        outcome, at = "granted", min(request.created, now)
    elif request.state in WAITING:
        outcome = "waiting"
    elif request.state == "FAILED":
        outcome = "failed"
    else:
        return
    for accelerator in dict.fromkeys(request.accelerators):
        yield Sighting(
            request=request.name,
            created=_stamp(request.created),
            zone=request.zone,
            accelerator=accelerator,
            provisioning=request.provisioning,
            outcome=outcome,
            at=_stamp(at),
            detail=request.detail,
        )


def _merged(before: Sighting | None, seen: Sighting) -> Sighting:
    """Merge a new sighting of the same request with the previous one."""
    if before is None or seen.outcome == "waiting":
        return seen
    if before.outcome == seen.outcome:
        return before
    if before.outcome == "waiting" and seen.outcome == "granted":
        return replace(seen, at=before.at)  # it was waiting then, so the grant is later
    return seen


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
