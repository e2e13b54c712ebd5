"""The record of a roll-out on Cloud Run: who moves the requests, how far, and how it ended.

It is an annotation of the service, so that each reader of the service has it, and one PATCH changes it together with the traffic.
`scripts.rollout` writes it. The program declares it as it is (decision 26), because an update sends the whole service.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, cast

from contracts.fields import ContractError, Doc, from_json, to_json
from contracts.former_names import ROLLOUT_OUTCOMES, current_outcome
from contracts.labels import PRODUCT

ROLLOUT_ANNOTATION: Final = f"{PRODUCT}-rollout-record"
"""Key of the annotation. It has no prefix: Cloud Run refuses its own namespaces, and a key without one is private to the user."""
SCHEMA: Final = 1
LONGEST_REASON: Final = 1000
"""Characters of a reason. All annotations of a service together may have 256 KiB."""

RecordedOutcome = Literal["rolled out", "rolled back", "not verified", "rolled back manually", "nothing to do", "interrupted"]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHolder:
    """The run that moves the requests."""

    id: Annotated[str, Doc("Drawn for each run: a run whose id is no longer here has lost its hold.")]
    user: Annotated[str, Doc("Name of the user.")]
    host: Annotated[str, Doc("Name of the machine.")]
    process: Annotated[int, Doc("Number of the process on that machine.")]
    since: Annotated[str, Doc("When the run began, RFC 3339, UTC.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRevision:
    """A revision that must not be rolled out again without its reason."""

    revision: Annotated[str, Doc("Short name of the revision.")]
    at: Annotated[str, Doc("When it was refused, RFC 3339, UTC.")]
    reason: Annotated[str, Doc("Why, whole sentences without secrets.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """The roll-out that ran last. Without a holder there was none."""

    schema: Annotated[int, Doc(f"{SCHEMA}")] = SCHEMA
    holder: Annotated[RolloutHolder | None, Doc("Who moves the requests, or moved them last.")] = None
    revision: Annotated[str, Doc("Short name of the revision that is rolled out.")] = ""
    serving: Annotated[str, Doc("Short name of the revision that served before.")] = ""
    share: Annotated[int, Doc("Percent of the requests that `revision` was given last.")] = 0
    renewed_at: Annotated[str, Doc("When the holder last wrote the record, RFC 3339, UTC.")] = ""
    outcome: Annotated[RecordedOutcome | None, Doc("How the roll-out ended; null while it runs, or was killed.")] = None
    reason: Annotated[str, Doc("What happened, whole sentences without secrets; empty while it runs.")] = ""
    refused: Annotated[RefusedRevision | None, Doc("The revision that was refused last.")] = None

    @property
    def runs(self) -> bool:
        """Whether a roll-out has begun and not ended, as far as the record says."""
        return self.holder is not None and self.outcome is None

    def text(self) -> str:
        """Return the annotation's value, without empty fields: always the same for the same record."""
        # Releases before 0.2.0 can share the service, and they read the former name.
        fields = {**to_json(self), "outcome": ROLLOUT_OUTCOMES.get(self.outcome or "", self.outcome)}
        return json.dumps(_lean(fields), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def refusal_of(self, revision: str) -> RefusedRevision | None:
        """Return why a revision is not offered again; None if nothing is known against it."""
        return self.refused if self.refused is not None and self.refused.revision == revision else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRecord:
    """A record that is there and cannot be read: who moves the requests is unknown."""

    why: str
    """Without a full stop."""


NO_ROLLOUT: Final = RolloutRecord()


def read_record(service: Mapping[str, object]) -> RolloutRecord | UnreadableRecord:
    """Return the record of a service, as run.v2 or the engine has it. A service without one had no roll-out."""
    text = annotations_of(service).get(ROLLOUT_ANNOTATION)
    if text is None:
        return NO_ROLLOUT
    try:
        raw = cast("object", json.loads(text))
        fields = dict(cast("Mapping[str, object]", raw)) if isinstance(raw, Mapping) else {"schema": SCHEMA}
        if fields.get("schema") != SCHEMA:
            return UnreadableRecord(
                why=f"its schema is {fields.get('schema')!r}, and this release reads schema {SCHEMA}"
            )
        if "outcome" in fields:
            raw = {**fields, "outcome": current_outcome(fields["outcome"])}
        return from_json(RolloutRecord, cast("object", raw), path=ROLLOUT_ANNOTATION)
    except ContractError as error:
        return UnreadableRecord(why=str(error).rstrip("."))
    except ValueError:
        return UnreadableRecord(why="it is not JSON")


def record_text(service: Mapping[str, object] | None) -> str:
    """Return the annotation to declare: what the service has, to the letter, also if it cannot be read."""
    return annotations_of(service or {}).get(ROLLOUT_ANNOTATION, NO_ROLLOUT.text())


def annotations_of(service: Mapping[str, object]) -> Mapping[str, str]:
    """Return the annotations of a service."""
    found = service.get("annotations")
    return cast("Mapping[str, str]", found) if isinstance(found, Mapping) else {}


def _lean(value: Any) -> Any:  # noqa: ANN401 - JSON is any of its types
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {key: _lean(item) for key, item in fields.items() if item not in (None, "", 0)}
