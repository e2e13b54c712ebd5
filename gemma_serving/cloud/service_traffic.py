"""Traffic of a Cloud Run service by revision, as Google returns it."""

from collections.abc import Mapping
from typing import Final

from gemma_serving.contracts.fields import as_mapping, as_sequence

_FOLLOWS_LATEST: Final = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
_WHOLE: Final = 100
"""Percent of the traffic."""

Service = Mapping[str, object]
"""A service as returned by run.v2."""


def serving_shares(service: Service) -> Mapping[str, int]:
    """Return the percentages of the traffic by the revision's short name, largest first.

    Google names no revision if the traffic follows the latest one (recorded in public states of `google_cloud_run_v2_service`). It is then
    the latest ready one.
    """
    ready = short_name(service.get("latestReadyRevision"))
    found: dict[str, int] = {}
    for entry in map(as_mapping, as_sequence(service.get("trafficStatuses"))):
        followed = ready if entry.get("type") == _FOLLOWS_LATEST else ""
        revision = str(entry.get("revision") or followed)
        percent = entry.get("percent")
        if revision and isinstance(percent, int) and percent:
            found[revision] = found.get(revision, 0) + percent
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def known_shares(service: Service) -> Mapping[str, int] | None:
    """Return the percentages, empty if nothing has ever served, or None if Google does not return the complete split.

    While a service reconciles, its statuses may be out of date (discovery: run.v2, Service.reconciling).
    """
    shares = serving_shares(service)
    is_whole = sum(shares.values()) == _WHOLE or (not shares and not service.get("latestReadyRevision"))
    return shares if is_whole else None


def shares_text(shares: Mapping[str, int]) -> str:
    """Return the traffic split for display, largest share first, such as `90 % a, 10 % b`."""
    return ", ".join(f"{percent} % {revision}" for revision, percent in shares.items())


def short_name(name: object) -> str:
    """Return the last part of a resource's name."""
    return str(name or "").rpartition("/")[2]
