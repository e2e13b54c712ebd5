"""What a roll-out does, as pure functions of the service that Google answers, the settings and what was measured."""

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
"""`roll back`: a revision that was named gets all requests at once, whatever the service's phase is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """Where a roll-out stands. Names of revisions are short."""

    phase: Phase
    latest: str
    """The revision that was made last."""
    serving: str
    """The revision that gets the most requests, not counting the new one while it is rolled out."""
    share: int = 0
    """Percent of the requests that the new revision gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a short benchmark measured of one revision. A figure is None where no request was answered."""

    requests: int
    failed: int
    ttft_s: float | None
    """Median time to the first token."""
    tok_per_s: float | None
    """Output tokens per second, all requests together."""


def state_of(service: Service) -> RolloutState:
    """Return where the roll-out of a service stands."""
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
    """Return the shares that are still to come. A roll-out that was interrupted goes on with the next one."""
    return tuple(step for step in plan.steps if step > share)


def divided(serving: str, latest: str, share: int) -> Sequence[TrafficTarget]:
    """Return the traffic while both revisions are checked: each has a tag, so that each can be measured alone."""
    return (
        TrafficTarget(revision=serving, percent=ALL - share, tag=LAST_TAG),
        TrafficTarget(revision=latest, percent=share, tag=NEXT_TAG),
    )


def whole(revision: str) -> Sequence[TrafficTarget]:
    """Return the traffic after a roll-out: all of it by name, and no tag, because a tag keeps instances running."""
    return (TrafficTarget(revision=revision, percent=ALL),)


def has_traffic(service: Service, wanted: Sequence[TrafficTarget]) -> bool:
    """Return whether requests are divided as wanted now, whatever the service's condition says of its latest revision."""
    shares = {target.revision: target.percent for target in wanted if target.revision and target.percent}
    return serving_shares(service) == shares and {*targets_of(service)} == {*wanted}


def fault_of(plan: RolloutPlan, before: Measured | None, now: Measured) -> str:
    """Return what is wrong with the new revision as a sentence with the figure and its limit; empty if nothing is.

    Without figures of the old revision nothing is compared.
    """
    if now.requests == 0 or now.failed > plan.max_failed * now.requests:
        return f"{now.failed} of {now.requests} requests failed; at most {plan.max_failed:.3g} of them may (cloudRun.rollout.maxFailed)."
    if before is None:
        return ""
    limit = f"at most {plan.max_slowdown:g} times slower is allowed (cloudRun.rollout.maxSlowdown)"
    if before.ttft_s and now.ttft_s is not None and now.ttft_s > before.ttft_s * plan.max_slowdown:
        return (
            f"The median time to the first token is {now.ttft_s:.3f} s, and {before.ttft_s:.3f} s with the old revision: "
            f"{now.ttft_s / before.ttft_s:.1f} times slower; {limit}."
        )
    if before.tok_per_s and now.tok_per_s is not None and now.tok_per_s * plan.max_slowdown < before.tok_per_s:
        slower = f"{before.tok_per_s / now.tok_per_s:.1f} times slower" if now.tok_per_s > 0 else "no token at all"
        return f"The new revision gives {now.tok_per_s:.1f} tok/s, and the old one gives {before.tok_per_s:.1f} tok/s: {slower}; {limit}."
    return ""


def stale_revisions(service: Service, revisions: Sequence[Mapping[str, object]], kept: Sequence[str]) -> Sequence[str]:
    """Return the short names of the revisions to delete, the oldest first.

    Never one that gets requests, has a tag, is the latest, or is in `kept`; and of a service without this product's labels none at all.
    """
    if owner_of(labels=cast("Mapping[str, object]", service.get("labels") or {})) is None:
        return ()
    latest = [short_name(service.get(key)) for key in ("latestCreatedRevision", "latestReadyRevision")]
    addressed = [target.revision for target in targets_of(service) if target.revision]
    safe = {*serving_shares(service), *addressed, *latest, *kept}
    oldest_first = sorted(revisions, key=lambda revision: str(revision.get("createTime")))
    names = [short_name(revision.get("name")) for revision in oldest_first]
    return [name for name in names if name not in safe]
