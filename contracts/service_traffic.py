"""Traffic of a Cloud Run service, which `gemma rollout` moves.

The program declares the current traffic, so an `up` never moves it. A changed template adds the new revision, with a tag and without traffic.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from contracts.fields import as_mapping, as_sequence
from contracts.labels import PRODUCT

NEXT_TAG: Final = "next"
LONGEST_TAG_AND_SERVICE: Final = 46
TEMPLATE_LABEL: Final = f"{PRODUCT}-template"
"""Label of a service: fingerprint of the last declared template."""
LATEST: Final = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
BY_REVISION: Final = "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION"
ALL: Final = 100

Service = Mapping[str, object]
"""A service as returned by run.v2."""
RolloutPhase = Literal["none", "waits", "unknown"]
"""`none`: the latest revision has all traffic, or did not start. `waits`: it has not. `unknown`: Google returns no split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficTarget:
    """A share of the traffic. Without a revision it follows the latest ready one."""

    revision: str | None = None
    percent: int = 0
    tag: str | None = None

    def to_api(self) -> dict[str, Any]:
        """Return the target for run.v2. Empty fields are omitted, as in its responses."""
        kind = LATEST if self.revision is None else BY_REVISION
        fields = {"type": kind, "revision": self.revision, "percent": self.percent, "tag": self.tag}
        return {key: value for key, value in fields.items() if value}


FOLLOW_LATEST: Final = (TrafficTarget(percent=ALL),)
"""Traffic without a rollout, and of a first deployment, whose revision does not exist yet."""


def declared_targets(
    service: Service | None, fingerprint: str, fixed: Mapping[str, int] | None = None
) -> Sequence[TrafficTarget]:
    """Return the traffic to declare for a template; `fixed` are the shares by revision from the settings.

    For the same template and split it is exactly Google's. Otherwise revisions get shares by name, and a new one only the tag.
    """
    if service is None:
        return FOLLOW_LATEST
    serving = serving_shares(service)
    shares = fixed or serving
    if not shares:
        return FOLLOW_LATEST
    named = [TrafficTarget(revision=revision, percent=percent) for revision, percent in shares.items()]
    if as_mapping(service.get("labels")).get(TEMPLATE_LABEL) != fingerprint:
        return (*named, TrafficTarget(tag=NEXT_TAG))
    if shares == serving:
        return targets_of(service)
    return (*named, *(target for target in targets_of(service) if not target.percent))


def template_fingerprint(template: object) -> str:
    """Return a label value that identifies a template in JSON types."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def targets_of(service: Service) -> Sequence[TrafficTarget]:
    """Return the traffic as last requested."""
    return tuple(
        TrafficTarget(
            revision=str(entry.get("revision") or "") or None if entry.get("type") == BY_REVISION else None,
            percent=_percent(entry),
            tag=str(entry.get("tag") or "") or None,
        )
        for entry in map(as_mapping, as_sequence(service.get("traffic")))
    )


def serving_shares(service: Service) -> Mapping[str, int]:
    """Return the percentages of the traffic by the revision's short name, largest first.

    Google names no revision if the traffic follows the latest one (recorded in public states of `google_cloud_run_v2_service`). It is then
    the latest ready one.
    """
    ready = short_name(service.get("latestReadyRevision"))
    found: dict[str, int] = {}
    for entry in map(as_mapping, as_sequence(service.get("trafficStatuses"))):
        followed = ready if entry.get("type") == LATEST else ""
        revision = str(entry.get("revision") or followed)
        percent = _percent(entry)
        if revision and percent:
            found[revision] = found.get(revision, 0) + percent
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def known_shares(service: Service) -> Mapping[str, int] | None:
    """Return the percentages, empty if nothing has ever served, or None if Google does not return the complete split.

    While a service reconciles, its statuses may be out of date (discovery: run.v2, Service.reconciling).
    """
    shares = serving_shares(service)
    is_whole = sum(shares.values()) == ALL or (not shares and not service.get("latestReadyRevision"))
    return shares if is_whole else None


def shares_text(shares: Mapping[str, int] | None) -> str:
    """Return the traffic split for display, largest share first, such as `90 % a, 10 % b`."""
    if shares is None:
        return "unknown"
    return ", ".join(f"{percent} % {revision}" for revision, percent in shares.items()) or "none"


def rollout_of(service: Service, stack: str) -> tuple[RolloutPhase, str]:
    """Return the phase of a rollout, and the next command as a sentence, empty if none exists."""
    shares = known_shares(service)
    latest = short_name(service.get("latestCreatedRevision"))
    ready = short_name(service.get("latestReadyRevision"))
    new = ready if ready == latest or not latest else ""
    if shares is None:
        return "unknown", ""
    if len(shares) > 1:
        check = f" To check {new} and move all traffic to it, run `gemma rollout {stack}`." if new else ""
        back = f"To roll back, run `gemma rollout {stack} --to {next(iter(shares))}`."
        return "waits", f"Traffic: {shares_text(shares)}.{check} {back}"
    if not new or not shares or new in shares:
        return "none", ""
    rollout = f"To check it and move all traffic to it, run `gemma rollout {stack}`."
    return "waits", f"Revision {new} has no traffic yet. {rollout}"


def is_ready(revision: Mapping[str, object]) -> bool:
    """Return whether a revision was ready once, so it can serve again."""
    conditions = map(as_mapping, as_sequence(revision.get("conditions")))
    return any(each.get("type") == "Ready" and each.get("state") == "CONDITION_SUCCEEDED" for each in conditions)


def short_name(name: object) -> str:
    """Return the last part of a resource's name."""
    return str(name or "").rpartition("/")[2]


def tag_urls(service: Service) -> Mapping[str, str]:
    """Return the URL of each tag."""
    entries = map(as_mapping, as_sequence(service.get("trafficStatuses")))
    return {str(entry["tag"]): str(entry["uri"]) for entry in entries if entry.get("tag") and entry.get("uri")}


def _percent(entry: Mapping[str, object]) -> int:
    """Return a share. The engine passes whole numbers as fractions, and Google omits a 0."""
    percent = entry.get("percent")
    return int(percent) if isinstance(percent, int | float) else 0
