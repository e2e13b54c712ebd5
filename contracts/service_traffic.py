"""Who gets the requests of a Cloud Run service: the program declares it, `scripts.rollout` moves it, and both read it from Google by this module.

Google's service is the one truth. The program declares the traffic that the service has, and only a changed template adds the new revision: with a
tag and without traffic. So an `up` never moves requests, and a moved share is no drift.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from contracts.fields import as_mapping, as_sequence
from contracts.labels import PRODUCT

NEXT_TAG: Final = "next"
"""Tag of the revision that is checked. Cloud Run allows 46 characters for a tag and the service's name together."""
LAST_TAG: Final = "last"
"""Tag of the revision that served before, while the traffic is divided: so that each can be measured alone."""
LONGEST_TAG_AND_SERVICE: Final = 46
TEMPLATE_LABEL: Final = f"{PRODUCT}-template"
"""Label of a service: the fingerprint of the template that was declared last."""
LATEST: Final = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
BY_REVISION: Final = "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION"
ALL: Final = 100

_FINGERPRINT_DIGITS: Final = 40

Service = Mapping[str, object]
"""A service as run.v2 answers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficTarget:
    """A share of the requests. Without a revision it follows the latest one that is ready."""

    revision: str | None = None
    percent: int = 0
    tag: str | None = None

    @property
    def kind(self) -> str:
        """The API's allocation type."""
        return LATEST if self.revision is None else BY_REVISION

    def to_api(self) -> dict[str, object]:
        """Return the target as run.v2 takes it. Empty fields are left out, as in its answers."""
        fields = {"type": self.kind, "revision": self.revision, "percent": self.percent, "tag": self.tag}
        return {key: value for key, value in fields.items() if value}


FOLLOW_LATEST: Final = (TrafficTarget(percent=ALL),)
"""Traffic without a roll-out, and of a first deployment: a revision has no traffic by name before it exists."""


def declared_targets(
    service: Service | None, fingerprint: str, fixed: Mapping[str, int] | None = None
) -> Sequence[TrafficTarget]:
    """Return the traffic to declare for a template. `fixed` are the shares of the settings, in percent by revision.

    If the service has this template and these shares already, it is what Google has, to the letter. Else the serving revisions keep their shares by
    name, or get those of the settings, and a latest revision that is new gets the tag and nothing more.
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
    """Return a label's value that names a template in JSON types."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_FINGERPRINT_DIGITS]


def targets_of(service: Service) -> Sequence[TrafficTarget]:
    """Return the traffic as it was asked for last."""
    return tuple(_target(as_mapping(entry)) for entry in as_sequence(service.get("traffic")))


def serving_shares(service: Service) -> Mapping[str, int]:
    """Return the share of each revision that gets requests, by its short name, the largest first.

    Google names no revision where the traffic follows the latest one (recorded in public states of `google_cloud_run_v2_service`): then it is the
    latest that is ready.
    """
    ready = short_name(service.get("latestReadyRevision"))
    found: dict[str, int] = {}
    for entry in map(as_mapping, as_sequence(service.get("trafficStatuses"))):
        followed = ready if entry.get("type") == LATEST else ""
        revision, percent = str(entry.get("revision") or followed), _percent(entry)
        if revision and percent:
            found[revision] = found.get(revision, 0) + percent
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def known_shares(service: Service) -> Mapping[str, int] | None:
    """Return the shares if they are all there; empty if nothing has ever served, and None if Google does not say who gets the requests.

    While a service reconciles, its statuses are those of some moment (discovery: run.v2, Service.reconciling).
    """
    shares = serving_shares(service)
    if sum(shares.values()) == ALL or (not shares and not service.get("latestReadyRevision")):
        return shares
    return None


def is_ready(revision: Mapping[str, object]) -> bool:
    """Return whether a revision started once, so that it can serve again."""
    conditions = map(as_mapping, as_sequence(revision.get("conditions")))
    return any(each.get("type") == "Ready" and each.get("state") == "CONDITION_SUCCEEDED" for each in conditions)


def short_name(name: object) -> str:
    """Return the last part of a resource's name."""
    return str(name or "").rpartition("/")[2]


def tag_urls(service: Service) -> Mapping[str, str]:
    """Return the URL of each tag."""
    entries = map(as_mapping, as_sequence(service.get("trafficStatuses")))
    return {str(entry["tag"]): str(entry["uri"]) for entry in entries if entry.get("tag") and entry.get("uri")}


def _target(entry: Mapping[str, object]) -> TrafficTarget:
    return TrafficTarget(
        revision=str(entry["revision"]) if entry.get("type") == BY_REVISION and entry.get("revision") else None,
        percent=_percent(entry),
        tag=str(entry["tag"]) if entry.get("tag") else None,
    )


def _percent(entry: Mapping[str, object]) -> int:
    """Return a share. The engine passes whole numbers as fractions, and Google leaves a 0 out."""
    percent = entry.get("percent")
    return int(percent) if isinstance(percent, int | float) else 0
