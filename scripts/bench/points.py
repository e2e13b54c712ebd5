"""What is measured: the points of a sweep, in order, within the server's length limit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final, Literal

from scripts.errors import REFUSED, ScriptError

Mode = Literal["closed", "open"]

QUICK_CONCURRENCY: Final = (1, 4, 16, 64)
QUICK_INPUT_TOKENS: Final = (128, 1024)
GRID_CONCURRENCY: Final = tuple(2**power for power in range(12))
"""1 to 2,048."""
GRID_INPUT_TOKENS: Final = tuple(2**power for power in range(3, 15))
"""8 to 16,384."""
DEFAULT_OUTPUT_TOKENS: Final = (128,)
LEAST_REQUESTS: Final = 8
WAVES: Final = 4
"""Requests a point, by default, as a multiple of the concurrency: the first wave fills the server, the last one empties it, and what lies
between should outweigh them."""
GRID_DURATION_S: Final = 120.0
OPEN_DURATION_S: Final = 30.0


class SweepError(ScriptError):
    """The sweep cannot be run as asked; the message is one sentence with the way out."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement: a load on one shape of request."""

    mode: Mode
    level: float
    """Requests in flight (closed loop), or requests a second (open loop)."""
    input_tokens: int
    output_tokens: int
    requests: int | None
    """Requests to send; None sends until `duration_s` is over."""
    duration_s: float | None
    """Seconds after which no further request is sent; None sends all `requests`."""
    seed: int
    repeat: int = 0
    requested_input_tokens: int | None = None
    """What was asked for, where it had to be clamped."""

    @property
    def key(self) -> str:
        """The point's name: the same for the same load and shape, whatever the seed."""
        load = f"c{self.level:g}" if self.mode == "closed" else f"r{self.level:g}"
        asked = self.requested_input_tokens or self.input_tokens
        return f"{self.mode}-{load}-i{asked}-o{self.output_tokens}-n{self.repeat}"

    @property
    def concurrency(self) -> int | None:
        """Requests in flight, of a closed loop."""
        return int(self.level) if self.mode == "closed" else None

    @property
    def request_rate(self) -> float | None:
        """Requests a second, of an open loop."""
        return self.level if self.mode == "open" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What was asked for."""

    concurrency: tuple[int, ...]
    request_rate: tuple[float, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    requests: int | None
    duration_s: float | None
    seed: int
    repeats: int = 1
    by_waves: bool = True
    """Whether a closed loop without `requests` ends after WAVES times its concurrency; otherwise `duration_s` alone ends it."""


def point_seed(sweep_seed: int, key: str, attempt: int = 0) -> int:
    """A seed of its own for every point and attempt, the same on every machine."""
    digest = hashlib.blake2b(f"{sweep_seed}/{key}/{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)


def plan_points(sweep: Sweep, max_model_len: int | None) -> tuple[list[Point], list[str]]:
    """All points in the order to run them, and notes about what had to be changed.

    Points of one shape stand together, with rising load, so that a saturated server can be told. Input is clamped to
    `max_model_len - output`: a longer request would only measure how fast the server refuses.
    """
    if not sweep.concurrency and not sweep.request_rate:
        raise SweepError("there is no load to measure: give --concurrency or --request-rate.")
    notes: list[str] = []
    points: dict[str, Point] = {}
    for output in sweep.output_tokens:
        shapes: set[int] = set()
        for asked in sorted(sweep.input_tokens):
            clamped = _clamped(asked, output, max_model_len, notes)
            if clamped is None or clamped in shapes:
                continue
            shapes.add(clamped)
            for point in _loads(sweep, clamped, output):
                shaped = point if clamped == asked else replace(point, requested_input_tokens=asked)
                points[shaped.key] = replace(shaped, seed=point_seed(sweep.seed, shaped.key))
    if not points:
        raise SweepError(
            "no point is left to measure: every output length reaches the server's max-model-len; give smaller --output-tokens."
        )
    return list(points.values()), notes


def _clamped(asked: int, output: int, max_model_len: int | None, notes: list[str]) -> int | None:
    if max_model_len is None or asked + output <= max_model_len:
        return asked
    room = max_model_len - output
    if room < 1:
        notes.append(
            f"LEN01: {output} output tokens leave no room for input at max-model-len {max_model_len}; left out."
        )
        return None
    notes.append(
        f"LEN01: {asked} input + {output} output tokens exceed max-model-len {max_model_len}; input clamped to {room}."
    )
    return room


def _loads(sweep: Sweep, input_tokens: int, output_tokens: int) -> list[Point]:
    points: list[Point] = []
    for repeat in range(sweep.repeats):
        for level in sorted(set(sweep.concurrency)):
            count = sweep.requests
            if count is None and sweep.by_waves:
                count = max(LEAST_REQUESTS, WAVES * level)
            points.append(
                Point(
                    mode="closed",
                    level=level,
                    input_tokens=input_tokens,
                    output_tokens=output_tokens,
                    requests=count,
                    duration_s=sweep.duration_s,
                    seed=0,
                    repeat=repeat,
                )
            )
        for rate in sorted(set(sweep.request_rate)):
            duration_s = (
                sweep.duration_s if sweep.duration_s is not None or sweep.requests is not None else OPEN_DURATION_S
            )
            points.append(
                Point(
                    mode="open",
                    level=rate,
                    input_tokens=input_tokens,
                    output_tokens=output_tokens,
                    requests=sweep.requests,
                    duration_s=duration_s,
                    seed=0,
                    repeat=repeat,
                )
            )
    return points
