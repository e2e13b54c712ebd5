"""Receipt of a teardown: every list call, the result of each deletion, retained buckets and failed checks."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gemma_serving.cloud.deletion import DeletedResource
from gemma_serving.cloud.google_api import GoogleApi, listed
from gemma_serving.cloud.kinds import SECRET
from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.cloud.spending import StackSpending
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.memory import write_private
from gemma_serving.contracts.naming import ARCHIVE_KEY
from gemma_serving.contracts.search_results import FoundResource, Inventory
from gemma_serving.planning.data.prices import price_words
from gemma_serving.planning.units import GIB
from gemma_serving.scripts.cli.command import not_written
from gemma_serving.scripts.stack.costs import found_costs, storage_price

FOLDER: Final = Path(".work") / "teardown"
_OBJECTS: Final = "storage/v1/b/{name}/o?fields=nextPageToken,items/size&maxResults=1000"


class ReceiptError(ScriptError):
    """The receipt could not be written to its place."""

    def __init__(self, problem: str, copy: Path | None) -> None:
        super().__init__(f"{problem} {f'A copy is in {copy}.' if copy else 'It is on stdout.'}")
        self.is_lost = copy is None
        """True if it is in no file. The caller prints it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedBucket:
    """A bucket that a teardown retains on purpose."""

    resource: FoundResource
    size_gib: float | None
    """Total size of its objects; None if they cannot be listed."""

    @property
    def usd_per_month(self) -> float | None:
        """Cost per month; None if its size is unknown."""
        return None if self.size_gib is None else self.size_gib * storage_price(self.resource).usd

    @property
    def text(self) -> str:
        """The bucket with its size and cost, for the receipt as text."""
        usd = self.usd_per_month
        at = price_words([storage_price(self.resource)])
        cost = "of unknown size" if usd is None else f"{self.size_gib:.2f} GiB, ${usd:,.2f} per month at {at}"
        return f"{self.resource.kind} {self.resource.name}: {cost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Result of a teardown. The engine destroys; the API deletes the rest."""

    stack: str | None
    """None: all stacks."""
    projects: Sequence[str]
    destroyed: int
    state: Sequence[Mapping[str, object]]
    leaked: Sequence[FoundResource]
    retained: Sequence[RetainedBucket]
    deletions: Sequence[DeletedResource]
    unknown: Sequence[str]
    warnings: Sequence[str]
    searches: Sequence[Inventory]
    started: datetime
    elapsed_s: float
    spent: Sequence[StackSpending] = ()
    """Cost of each stack that the first search found, as in `gemma status`."""
    left: Sequence[FoundResource] = ()
    """Part of `leaked` that no state of this backend has, and that was not confirmed."""
    foreign: Sequence[FoundResource] = ()
    """Resources of other Pulumi projects, which were left."""
    held: Sequence[FoundResource] = ()
    """Networks and subnetworks that only Google holds."""
    held_by: Sequence[str] = ()
    """Names of Cloud Run's addresses, which are the reason."""
    held_until: datetime | None = None
    """The end of the hold, at most; None if the deletion of the last service is not known."""
    reasons: Sequence[str] = ()
    """Limits that the stack exceeded, each with its measured value."""
    interrupted: bool
    dry_run: bool

    @property
    def first_start(self) -> str:
        """What the teardown means for compiled programs, as a clause; empty without any."""
        found = [item for search in self.searches for item in search.found]
        return first_start([item for item in found if item not in self.left], retains_bucket=bool(self.retained))

    @property
    def clean(self) -> bool:
        """True if every check succeeded and no resource is left, except what only Google holds at no cost."""
        return not (self.state or self.leaked or self.unknown or self.interrupted)

    def to_json(self) -> dict[str, object]:
        """Return the receipt as `--json` prints it and as its file contains it."""
        return {
            "stack": self.stack,
            "projects": list(self.projects),
            "destroyed": self.destroyed,
            "state": [{"type": item.get("type"), "id": item.get("id") or item.get("urn")} for item in self.state],
            "leaked": [resource_json(item, self.started, self.spent) for item in self.leaked],
            "held": [
                {
                    **resource_json(item, self.started, self.spent),
                    "until": self.held_until and self.held_until.isoformat(),
                }
                for item in self.held
            ],
            "held_by": list(self.held_by),
            "left": [item.name for item in self.left],
            "foreign": [resource_json(item, self.started, ()) for item in self.foreign],
            "retained": [
                {
                    **resource_json(item.resource, self.started, self.spent),
                    "size_gib": None if item.size_gib is None else round(item.size_gib, 3),
                    "usd_per_month": None if item.usd_per_month is None else round(item.usd_per_month, 2),
                }
                for item in self.retained
            ],
            "deleted": [
                {
                    "kind": item.resource.kind,
                    "name": item.resource.name,
                    "outcome": item.outcome,
                    "detail": item.detail,
                    "elapsed_s": round(item.elapsed_s, 3),
                }
                for item in self.deletions
            ],
            "unknown": list(self.unknown),
            "warnings": list(self.warnings),
            "compiled_programs": self.first_start,
            "reasons": list(self.reasons),
            "clean": self.clean,
            "dry_run": self.dry_run,
            "interrupted": self.interrupted,
            "simulated": is_simulated(),
            "started": self.started.astimezone(UTC).isoformat(timespec="seconds"),
            "elapsed_s": round(self.elapsed_s, 1),
            "calls": [
                {
                    "search": number,
                    "kind": call.kind,
                    "api": call.api,
                    "path": call.path,
                    "items": call.items,
                    "outcome": call.outcome,
                    "elapsed_s": round(call.elapsed_s, 3),
                }
                for number, search in enumerate(self.searches, 1)
                for call in search.calls
            ],
        }

    def write(self, path: Path | None) -> Path:
        """Write the receipt and return its path. Raises ReceiptError; it is then in a temporary folder, if that takes it."""
        stamp = self.started.astimezone(UTC).strftime("%Y%m%dT%H%M%S%fZ")
        target = path or FOLDER / f"{self.stack or 'all'}-{stamp}.json"
        try:
            return self._written(target)
        except OSError as error:
            problem = not_written(error, f"the receipt {target}")
        try:
            elsewhere = self._written(Path(tempfile.mkdtemp(prefix="teardown-")) / target.name)
        except OSError:
            raise ReceiptError(problem, None) from None
        raise ReceiptError(problem, elsewhere)

    def _written(self, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_private(target, f"{json.dumps(self.to_json(), indent=2)}\n")
        return target


def first_start(deleted: Sequence[FoundResource], *, retains_bucket: bool) -> str:
    """Return that compiled programs end with the key that signs their archives, as a clause; empty if it is not deleted."""
    if not any(item.kind == SECRET and item.name.endswith(f"-{ARCHIVE_KEY}") for item in deleted):
        return ""
    what = (
        "compiled programs in the retained bucket are ignored without their key"
        if retains_bucket
        else "compiled programs go too"
    )
    return f"{what}: the next start is a first one"


def resource_json(item: FoundResource, now: datetime, spent: Sequence[StackSpending]) -> dict[str, object]:
    """Return a found resource as JSON, with its costs."""
    age_s = item.age_s(now)
    return {
        "kind": item.kind,
        "name": item.name,
        "command": item.command,
        "stack": item.owner.stack,
        "pulumi_project": item.owner.project,
        "project": item.project,
        "location": item.location,
        "created": item.created,
        "age_s": None if age_s is None else round(age_s),
        **found_costs(item, spent),
    }


def retained_bucket(api: GoogleApi, resource: FoundResource) -> RetainedBucket:
    """Return a bucket with the total size of its objects."""
    found = listed(api, "storage", _OBJECTS.format(name=resource.id))
    if found.unread is not None:
        return RetainedBucket(resource=resource, size_gib=None)
    items = [as_mapping(item) for page in found.pages for item in as_sequence(page.get("items"))]
    return RetainedBucket(resource=resource, size_gib=sum(int(str(item.get("size") or 0)) for item in items) / GIB)
