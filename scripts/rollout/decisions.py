"""Decisions of a rollout, as pure functions of the service, the settings and the measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from contracts.labels import owner_of
from contracts.outputs import RolloutPlan
from contracts.service_traffic import (
    ALL,
    LAST_TAG,
    NEXT_TAG,
    Service,
    TrafficTarget,
    serving_shares,
    short_name,
    targets_of,
)

Phase = Literal["roll out", "finish", "not ready", "nothing serves", "roll back"]
"""`roll back`: the revision of --to gets all traffic immediately, regardless of the service's phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """State of a rollout. Revision names are short."""

    phase: Phase
    latest: str
    """The revision that was created last."""
    serving: str
    """The revision with the most traffic, excluding the new one during its rollout."""
    share: int = 0
    """Traffic percentage of the new revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Results of a short benchmark of one revision. A metric is None if no request completed."""

    requests: int
    failed: int
    ttft_s: float | None
    """Median time to the first token."""
    tok_per_s: float | None
    """Output tokens per second of all requests together."""


def state_of(service: Service) -> RolloutState:
    """Return the rollout state of a service."""
    created, ready = (short_name(service.get(key)) for key in ("latestCreatedRevision", "latestReadyRevision"))
    shares = serving_shares(service)
    if not shares:
        return RolloutState(phase="nothing serves", latest=created, serving="")
    if ready != created:
        return RolloutState(phase="not ready", latest=created, serving=next(iter(shares)))
    others = [revision for revision in shares if revision != ready]
    if not others:
        return RolloutState(phase="finish", latest=ready, serving=ready, share=ALL)
    return RolloutState(phase="roll out", latest=ready, serving=others[0], share=shares.get(ready, 0))


def steps_left(plan: RolloutPlan, share: int) -> Sequence[int]:
    """Return the remaining traffic percentages. An interrupted rollout continues with the next one."""
    return tuple(step for step in plan.steps if step > share)


def divided(serving: str, latest: str, share: int) -> Sequence[TrafficTarget]:
    """Return the traffic targets during the checks. Each revision has a tag so that it can be measured alone."""
    return (
        TrafficTarget(revision=serving, percent=ALL - share, tag=LAST_TAG),
        TrafficTarget(revision=latest, percent=share, tag=NEXT_TAG),
    )


def whole(revision: str) -> Sequence[TrafficTarget]:
    """Return the traffic targets after a rollout: one named revision, and no tag because a tag keeps instances running."""
    return (TrafficTarget(revision=revision, percent=ALL),)


def has_traffic(service: Service, wanted: Sequence[TrafficTarget]) -> bool:
    """Return whether the traffic split is as wanted, regardless of the service's condition."""
    shares = {target.revision: target.percent for target in wanted if target.revision and target.percent}
    return serving_shares(service) == shares and {*targets_of(service)} == {*wanted}


def fault_of(plan: RolloutPlan, before: Measured | None, now: Measured) -> str:
    """Return why the new revision fails, as a sentence with the metric and its limit; empty if it passes.

    Without metrics of the old revision, speed is not compared.
    """
    if now.requests == 0 or now.failed > plan.max_failed * now.requests:
        return f"{now.failed} of {now.requests} requests failed. Maximum: {plan.max_failed:.3g} of them (cloudRun.rollout.maxFailed)."
    if before is None:
        return ""
    limit = f"Maximum: {plan.max_slowdown:g} times slower (cloudRun.rollout.maxSlowdown)"
    if before.ttft_s and now.ttft_s is not None and now.ttft_s > before.ttft_s * plan.max_slowdown:
        return (
            f"The median time to first token is {now.ttft_s:.3f} s, but {before.ttft_s:.3f} s with the old revision "
            f"({now.ttft_s / before.ttft_s:.1f} times slower). {limit}."
        )
    if before.tok_per_s and now.tok_per_s is not None and now.tok_per_s * plan.max_slowdown < before.tok_per_s:
        slower = f"{before.tok_per_s / now.tok_per_s:.1f} times slower" if now.tok_per_s > 0 else "no tokens"
        return f"The new revision generates {now.tok_per_s:.1f} tok/s, but the old one {before.tok_per_s:.1f} tok/s ({slower}). {limit}."
    return ""


def stale_revisions(service: Service, revisions: Sequence[Mapping[str, object]], kept: Sequence[str]) -> Sequence[str]:
    """Return the short names of the revisions to delete, oldest first.

    Never includes a revision that gets traffic, has a tag, is the latest or is in `kept`. Empty for a service without this product's labels.
    """
    if owner_of(labels=cast("Mapping[str, object]", service.get("labels") or {})) is None:
        return ()
    latest = [short_name(service.get(key)) for key in ("latestCreatedRevision", "latestReadyRevision")]
    addressed = [target.revision for target in targets_of(service) if target.revision]
    safe = {*serving_shares(service), *addressed, *latest, *kept}
    oldest_first = sorted(revisions, key=lambda revision: str(revision.get("createTime")))
    names = [short_name(revision.get("name")) for revision in oldest_first]
    return [name for name in names if name not in safe]
