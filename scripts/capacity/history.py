"""Our own history of stock: `results/capacity.json`. Whether a zone has free machines is known only by asking, so what was answered is kept.

The form is frozen: a change of meaning raises SCHEMA_VERSION. Nothing in it is secret; it stays on this machine.
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
from scripts.cli.measured.store import FOLDER

SCHEMA_VERSION: Final = 1
KEPT_DAYS: Final = 90
"""What is older says nothing about stock, and is dropped."""
Outcome = Literal["granted", "waiting", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """How far a request for one accelerator was when a command last looked."""

    request: str
    """Full name of the queued resource."""
    created: str
    """When it was made (RFC 3339). With the name, it is the identity: names are used again."""
    zone: str
    accelerator: str
    """As the API names it: v5litepod-4."""
    provisioning: ProvisioningModel
    outcome: Outcome
    at: str
    """`granted`: no earlier than this. `waiting`: still waiting at this time. `failed`: seen failed first at this time. RFC 3339."""
    detail: str = ""
    """Google's words about a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StockHistory:
    """The file."""

    schema_version: int = SCHEMA_VERSION
    sightings: tuple[Sighting, ...] = ()

    def latest(self, zone: str, accelerator: str, provisioning: ProvisioningModel) -> Sighting | None:
        """Return the newest sighting of one accelerator in a zone; None if nothing was ever asked there."""
        asked = (zone, accelerator, provisioning)
        found = (one for one in self.sightings if (one.zone, one.accelerator, one.provisioning) == asked)
        return max(found, key=lambda one: datetime.fromisoformat(one.at), default=None)

    def with_requests(self, requests: Iterable[QueuedResource], now: datetime) -> "StockHistory":
        """Return the history with what is seen now, without what is older than KEPT_DAYS."""
        known = {(one.request, one.created, one.accelerator): one for one in self.sightings}
        for request in requests:
            for seen in _sightings(request, now):
                key = (seen.request, seen.created, seen.accelerator)
                known[key] = _merged(known.get(key), seen)
        oldest = now - timedelta(days=KEPT_DAYS)
        kept = (one for one in known.values() if datetime.fromisoformat(one.at) >= oldest)
        return replace(self, sightings=tuple(sorted(kept, key=lambda one: (one.at, one.request, one.accelerator))))


class HistoryError(ScriptError):
    """The history cannot be read or written; the command goes on without it."""


def history_path() -> Path:
    """Return the file of the project."""
    return project_folder() / FOLDER / "capacity.json"


def read_history() -> StockHistory:
    """Return the history; an empty one if there is no file. Raises HistoryError."""
    path = history_path()
    try:
        found = read_kept(path, StockHistory, SCHEMA_VERSION, check=_require_times)
    except KeptFileError as error:
        raise HistoryError(f"the history of stock, {path}, {error}; move it away to begin a new one.") from None
    return found or StockHistory()


def _require_times(history: StockHistory) -> None:
    for one in history.sightings:
        datetime.fromisoformat(one.at)


def record_requests(requests: Iterable[QueuedResource], now: datetime) -> StockHistory:
    """Add what is seen of this product's requests to the file, and return the whole history. Raises HistoryError, and then changes nothing."""
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
        raise HistoryError(f"the history of stock, {history_path()}, cannot be written: {error.strerror}.") from None
    return changed[0]


def _sightings(request: QueuedResource, now: datetime) -> Iterable[Sighting]:
    outcome: Outcome
    at = now
    if request.state in GRANTED:
        # The grant lies between the request's creation and now: the earlier end does not make the stock look newer than it is.
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
    """Return what is known after another look at the same request."""
    if before is None or seen.outcome == "waiting":
        return seen
    if before.outcome == seen.outcome:
        return before
    if before.outcome == "waiting" and seen.outcome == "granted":
        return replace(seen, at=before.at)  # it still waited then, so the grant came later
    return seen


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
