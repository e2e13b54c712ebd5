"""Saturation of the loads of a sweep, and its limit, which is this client or the queue, KV cache, batch or speed of the server.

Pure functions. Three answers: saturated, not saturated, and unknown if the loads do not tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from loadtest.client.json_values import as_list, as_mapping
from loadtest.loads import MeasuredLoad, Shape
from loadtest.proof import OTHER_CLIENTS
from loadtest.traffic.points import KV_REASON

LimitName: TypeAlias = Literal["client", "KV cache", "batch", "queue", "server", "none", "unknown"]
"""`queue`: requests wait although the server runs all that it can, such as prompts that are computed in turn. `server`: no request waits, so the
speed of the accelerator limits."""

GAIN: Final = 1.05
"""A closed loop is saturated if no higher load gained more than this factor in output tokens per second."""
WAITING_SHARE: Final = 0.10
"""Requests wait if their mean number exceeds this share of the requests in flight, and one request ..."""
BATCH_SHARE: Final = 0.9
"""The batch limits a closed loop if the server never ran more than this share of the users at the same time."""
FULL: Final = 0.95
"""A KV cache above this share is full."""
CLIENT_REASONS: Final = ("the client's ", "a client process ", "requests were sent late")
NOT_SENT: Final = "were not sent because"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """Saturation of the loads of one shape."""

    saturated: bool | None
    """None if the loads do not tell."""
    at: MeasuredLoad | None
    """Smallest load that saturates the server, or the highest valid load if none does."""
    limit: LimitName
    reason: str
    """Evidence, as the end of a sentence."""


def is_of_client(result: Mapping[str, Any]) -> bool:
    """Return whether a point is invalid because of this client."""
    reasons = [str(reason) for reason in as_list(result.get("invalid_reasons"))]
    return any(reason.startswith(CLIENT_REASONS) or NOT_SENT in reason for reason in reasons)


def is_shared(result: Mapping[str, Any]) -> bool:
    """Return whether other clients used the server during a point."""
    return any(OTHER_CLIENTS in str(note) for note in as_list(result.get("notes")))


def bottleneck_of(run: Mapping[str, Any], loads: Sequence[MeasuredLoad], shape: Shape) -> Bottleneck:
    """Return the saturation of the loads of a shape."""
    group = [load for load in loads if load.shape == shape]
    usable = [load for load in group if load.is_valid]
    if not usable:
        return _without_valid_load(group)
    over = _first_saturated(usable)
    if over is not None:
        limit, reason = _limit_of(usable[-1])  # the highest load shows the queue, the KV cache and the batch best
        return Bottleneck(saturated=True, at=over, limit=limit, reason=reason)
    top = usable[-1]
    late = next((load for load in group if load.level > top.level and any(map(is_of_client, load.results))), None)
    if late is not None:
        why = f"at {late.text} this client was the limit: {_first_reason(late)}"
        return Bottleneck(saturated=None, at=top, limit="client", reason=why)
    return _unsaturated(run, usable)


def _unsaturated(run: Mapping[str, Any], usable: Sequence[MeasuredLoad]) -> Bottleneck:
    """Return the result for loads of which none saturates the server: higher loads may."""
    top = usable[-1]
    beyond = _beyond_cache(run, top)
    if beyond:
        why = f"the next load was left out because {beyond}"
        return Bottleneck(saturated=None, at=top, limit="KV cache", reason=why)
    if top.shape.mode == "closed" and len(usable) == 1:
        waits = "without a queue " if top.server("requests_waiting_mean") is not None else ""
        why = f"one load {waits}does not show it"
        return Bottleneck(saturated=None, at=top, limit="unknown", reason=why)
    if top.shape.mode == "open" and any(_over(result) is None for result in top.results):
        why = f"the point at {top.text} is too short to show it"
        return Bottleneck(saturated=None, at=top, limit="unknown", reason=why)
    why = f"the output rate still grew up to {top.text}, the highest valid load"
    return Bottleneck(saturated=False, at=top, limit="none", reason=why)


def _without_valid_load(group: Sequence[MeasuredLoad]) -> Bottleneck:
    late = next((load for load in group if any(map(is_of_client, load.results))), None)
    if late is not None:
        return Bottleneck(
            saturated=None, at=None, limit="client", reason=f"this client was the limit: {_first_reason(late)}"
        )
    why = _first_reason(group[0]) if group else "no point was measured"
    return Bottleneck(saturated=None, at=None, limit="unknown", reason=f"no load is valid: {why}")


def _first_reason(load: MeasuredLoad) -> str:
    reasons = [str(reason) for result in load.results for reason in as_list(result.get("invalid_reasons"))]
    ours = [reason for reason in reasons if reason.startswith(CLIENT_REASONS) or NOT_SENT in reason]
    return next(iter([*ours, *reasons]), "no response was complete")


def _first_saturated(usable: Sequence[MeasuredLoad]) -> MeasuredLoad | None:
    """Return the lowest load that saturates the server. A load is saturated if requests wait at it, or if no higher load is faster."""
    for number, load in enumerate(usable):
        if load.shape.mode == "open":
            if all(_over(result) for result in load.results):
                return load
            continue
        higher = [each.output_tok_per_s for each in usable[number + 1 :]]
        if _waiting(load) or (higher and max(higher) < GAIN * load.output_tok_per_s):
            return load
    return None


def _over(result: Mapping[str, Any]) -> bool | None:
    over = as_mapping(result.get("saturation")).get("over")
    return over if isinstance(over, bool) else None


def _waiting(load: MeasuredLoad) -> bool:
    """Return whether requests wait at the server for most of the point, by its metrics."""
    waiting, running = load.server("requests_waiting_mean"), load.server("requests_running_mean")
    if waiting is None or running is None:
        return False
    return waiting > max(1.0, WAITING_SHARE * (waiting + running))


def _limit_of(load: MeasuredLoad) -> tuple[LimitName, str]:
    """Return what limits a saturated server, and the evidence at its highest load."""
    usage, waiting = load.server("kv_cache_usage_max"), load.server("requests_waiting_mean")
    preempted, running = load.server("preemptions"), load.server("requests_running_max")
    if preempted or (usage is not None and usage >= FULL):
        share = (
            f"at {load.text}, {usage:.0%} of the KV cache was in use"
            if usage is not None
            else f"at {load.text}, the KV cache was full"
        )
        more = f", and the server preempted {preempted:.0f} requests" if preempted else ""
        return "KV cache", f"{share}{more}"
    if waiting is None or usage is None:
        if load.shape.mode == "open":
            return (
                "queue",
                f"at {load.text}, requests in flight and latency kept growing; the server has no metrics that tell KV cache and batch apart",
            )
        return (
            "server",
            f"at {load.text}, the output rate no longer grows; the server has no metrics that tell queue, KV cache and batch apart",
        )
    if _waiting(load) and running is not None:
        seen = f"at {load.text}, {waiting:.0f} requests waited on average, at most {running:.0f} ran, and {usage:.0%} of the KV cache was in use"
        is_capped = load.shape.mode == "closed" and running < BATCH_SHARE * load.level
        return ("batch" if is_capped else "queue"), seen
    return (
        "server",
        f"at {load.text}, no request waited long and at most {usage:.0%} of the KV cache was in use, so the accelerator's speed is the limit",
    )


def _beyond_cache(run: Mapping[str, Any], top: MeasuredLoad) -> str:
    """Return why the load above the highest measured one was left out because of the KV cache; empty if none was."""
    asked, output = top.shape.input_tokens, top.shape.output_tokens
    for row in map(as_mapping, as_list(run.get("left_out"))):
        reason = str(row.get("reason"))
        if KV_REASON in reason and f"-i{asked}-o{output}-" in str(row.get("key")):
            return reason
    return ""
