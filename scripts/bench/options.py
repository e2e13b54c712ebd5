"""What people write on the command line, as values; every mistake is one sentence."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final, cast

from scripts.bench.measure import Objective
from scripts.bench.points import SweepError

if TYPE_CHECKING:
    from collections.abc import Mapping

OBJECTIVES: Final = ("ttft", "tpot", "e2e")
RESERVED: Final = ("model", "messages", "prompt", "stream", "stream_options", "max_tokens")


def parse_whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """`1,8,64` as numbers of one or more, without repetitions, in order."""
    found: set[int] = set()
    for part in text.split(","):
        stripped = part.strip().replace("_", "")
        if not stripped.isdecimal() or int(stripped) < 1:
            raise SweepError(f"{option} is {text!r}; it must be whole numbers of 1 or more, such as 1,8,64.")
        found.add(int(stripped))
    return tuple(sorted(found))


def parse_rates(option: str, text: str) -> tuple[float, ...]:
    """`0.5,2` as positive numbers."""
    found: set[float] = set()
    for part in text.split(","):
        try:
            rate = float(part)
        except ValueError:
            rate = math.nan
        if not (rate > 0 and math.isfinite(rate)):
            raise SweepError(
                f"{option} is {text!r}; it must be positive numbers of requests a second, such as 0.5,2,8."
            )
        found.add(rate)
    return tuple(sorted(found))


def parse_objective(text: str) -> Objective:
    """`ttft=0.5,tpot=0.05,e2e=10` in seconds."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, raw = part.strip().partition("=")
        try:
            limit = float(raw)
        except ValueError:
            limit = math.nan
        if name not in OBJECTIVES or not (limit > 0 and math.isfinite(limit)):
            raise SweepError(
                f"--slo is {text!r}; it must be seconds for some of {', '.join(OBJECTIVES)}, such as ttft=0.5,tpot=0.05."
            )
        limits[name] = limit
    return Objective(ttft_s=limits.get("ttft"), tpot_s=limits.get("tpot"), e2e_s=limits.get("e2e"))


def parse_extra_body(text: str) -> Mapping[str, object]:
    """A JSON object that may not touch what the benchmark itself sets."""
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise SweepError(f"--extra-body is no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise SweepError("--extra-body must be a JSON object.")
    body = cast("dict[str, object]", found)
    taken = [name for name in RESERVED if name in body]
    if taken:
        raise SweepError(f"--extra-body must not set {', '.join(taken)}: the benchmark sets them.")
    return body
