"""Record of a Cloud Run rollout: the run that moves the traffic, its progress, and its result.

It is an annotation of the service, so each reader of the service has it, and one PATCH changes it together with the traffic.
`scripts.rollout` writes it. The program declares it unchanged (decision 26), because an update sends the whole service.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, cast

from contracts.fields import ContractError, Doc, from_json, to_json
from contracts.labels import PRODUCT

ROLLOUT_ANNOTATION: Final = f"{PRODUCT}-rollout-record"
"""Key of the annotation. It has no prefix, because Cloud Run rejects its own namespaces, and a key without one is private to the user."""
SCHEMA: Final = 1
LONGEST_REASON: Final = 1000
"""Maximum characters of a reason. All annotations of a service together are limited to 256 KiB."""

RecordedOutcome = Literal["rolled out", "rolled back", "not verified", "rolled back manually", "nothing to do", "interrupted"]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHolder:
    """The run that moves the traffic."""

    id: Annotated[str, Doc("Random id of the run. A run whose id is no longer here has lost control.")]
    user: Annotated[str, Doc("Name of the user.")]
    host: Annotated[str, Doc("Name of the machine.")]
    process: Annotated[int, Doc("Process id on that machine.")]
    since: Annotated[str, Doc("Start of the run, RFC 3339, UTC.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRevision:
    """A revision that must not be rolled out again without notice."""

    revision: Annotated[str, Doc("Short name of the revision.")]
    at: Annotated[str, Doc("Time of the refusal, RFC 3339, UTC.")]
    reason: Annotated[str, Doc("Reason in whole sentences, without secrets.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """The last rollout. Without a holder: none."""

    schema: Annotated[int, Doc(f"{SCHEMA}")] = SCHEMA
    holder: Annotated[RolloutHolder | None, Doc("Run that moves the traffic, or moved it last.")] = None
    revision: Annotated[str, Doc("Short name of the revision being rolled out.")] = ""
    serving: Annotated[str, Doc("Short name of the previously serving revision.")] = ""
    share: Annotated[int, Doc("Last traffic percentage of `revision`.")] = 0
    renewed_at: Annotated[str, Doc("Time at which the holder last wrote the record, RFC 3339, UTC.")] = ""
    outcome: Annotated[
        RecordedOutcome | None, Doc("Result of the rollout; null while it runs, or if it was killed.")
    ] = None
    reason: Annotated[str, Doc("Reason in whole sentences, without secrets; empty while it runs.")] = ""
    refused: Annotated[RefusedRevision | None, Doc("The last refused revision.")] = None

    @property
    def runs(self) -> bool:
        """True if, according to the record, a rollout was started and has not finished."""
        return self.holder is not None and self.outcome is None

    def text(self) -> str:
        """Return the annotation's value, without empty fields: always the same text for the same record."""
        return json.dumps(_lean(to_json(self)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def refusal_of(self, revision: str) -> RefusedRevision | None:
        """Return why a revision is not rolled out again, or None."""
        return self.refused if self.refused is not None and self.refused.revision == revision else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRecord:
    """A record that exists but is invalid, so the run that moves the traffic is unknown."""

    why: str
    """Reason, without a full stop."""


NO_ROLLOUT: Final = RolloutRecord()


def read_record(service: Mapping[str, object]) -> RolloutRecord | UnreadableRecord:
    """Return the record of a service in the form of run.v2 or the engine. A service without one had no rollout."""
    text = annotations_of(service).get(ROLLOUT_ANNOTATION)
    if text is None:
        return NO_ROLLOUT
    try:
        raw = cast("object", json.loads(text))
        fields = dict(cast("Mapping[str, object]", raw)) if isinstance(raw, Mapping) else {"schema": SCHEMA}
        if fields.get("schema") != SCHEMA:
            return UnreadableRecord(
                why=f"its schema is {fields.get('schema')!r}, but this release reads schema {SCHEMA}"
            )
        return from_json(RolloutRecord, cast("object", raw), path=ROLLOUT_ANNOTATION)
    except ContractError as error:
        return UnreadableRecord(why=str(error).rstrip("."))
    except ValueError:
        return UnreadableRecord(why="it is not JSON")


def record_text(service: Mapping[str, object] | None) -> str:
    """Return the annotation to declare: the service's own, unchanged even if it is invalid."""
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
