"""Points of a sweep, in order and within the server's length limit."""

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from loadtest.errors import SweepError
from loadtest.measure import JUDGED_PERCENTILE, point_text, requests_for
from loadtest.traffic.spec import FIXED_LENGTHS, Traffic

Mode = Literal["closed", "open"]

LEAST_REQUESTS: Final = 8
LEAST_WAVES: Final = 4
"""Requests that a closed loop sends in any case, as a multiple of the concurrency ..."""
WAVES: Final = 8
"""... and at most by default, but enough for the percentile that a point is judged by. The first wave fills the server and the last one
drains it, and the waves in between must outweigh both."""
ENOUGH_S: Final = 60.0
"""Seconds after which a closed loop sends no more than LEAST_WAVES, and the default duration of an open loop. On a slow server the
steady window then supports a lower percentile, which is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measurement: one load with one length of prompt and response."""

    mode: Mode
    level: float
    """Requests in flight (closed loop) or requests per second (open loop)."""
    input_tokens: int
    output_tokens: int
    requests: int | None
    """Requests to send, or None to send until `duration_s` is over."""
    duration_s: float | None
    """Seconds after which no further request is sent, or None to send all `requests`."""
    seed: int
    repeat: int = 0
    least_requests: int | None = None
    """Requests after which a closed loop ends once ENOUGH_S have passed; None to send all `requests`."""
    requested_input_tokens: int | None = None
    """Requested length, if it was clamped."""
    traffic: str = ""
    """Difference of the load from prompts of one length; empty without one."""

    @property
    def key(self) -> str:
        """Name of the point. The same load and lengths have the same name with every seed."""
        load = f"c{self.level:g}" if self.mode == "closed" else f"r{self.level:g}"
        asked = self.requested_input_tokens or self.input_tokens
        return f"{self.mode}-{load}-i{asked}-o{self.output_tokens}-n{self.repeat}"

    @property
    def text(self) -> str:
        """The point for a reader."""
        return point_text(asdict(self))

    @property
    def concurrency(self) -> int | None:
        """Concurrent requests of a closed loop, or None in an open loop."""
        return int(self.level) if self.mode == "closed" else None

    @property
    def request_rate(self) -> float | None:
        """Requests per second of an open loop, or None in a closed loop."""
        return self.level if self.mode == "open" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Requested measurements."""

    concurrency: tuple[int, ...]
    request_rate: tuple[float, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    requests: int | None
    duration_s: float | None
    seed: int
    repeats: int = 1
    by_waves: bool = True
    """True if a closed loop without `requests` ends after `default_requests`; otherwise only `duration_s` ends it."""
    traffic: Traffic = FIXED_LENGTHS
    within_cache: bool = False
    """True to leave out closed loops that exceed the server's KV cache."""
    limit_s: float | None = None
    """Seconds after which the sweep ends. Points that do not fit are left out; None to measure all."""


QUICK_MINUTES: Final = 5
"""Time in which the preset `quick` ends, with its start and its reports, for which 15 s are kept."""
_LENGTHS: Final = Sweep(
    concurrency=(1, 4, 16, 64),
    request_rate=(),
    input_tokens=(512,),
    output_tokens=(128,),
    requests=None,
    duration_s=None,
    seed=0,
)
PRESETS: Final = {
    "quick": replace(_LENGTHS, concurrency=(1, 16, 64), limit_s=QUICK_MINUTES * 60.0 - 15.0),
    "grid": replace(
        _LENGTHS,
        concurrency=tuple(2**power for power in range(12)),  # 1 to 2,048
        input_tokens=tuple(2**power for power in range(3, 15)),  # 8 to 16,384
        duration_s=120.0,
        within_cache=True,  # its largest points take hours beyond the cache
    ),
    # Lengths with published benchmarks: long prompts, long responses, and both.
    "8000/1000": replace(_LENGTHS, input_tokens=(8000,), output_tokens=(1000,)),
    "1000/8000": replace(_LENGTHS, input_tokens=(1000,), output_tokens=(8000,)),
    "1000/1000": replace(_LENGTHS, input_tokens=(1000,), output_tokens=(1000,)),
}


def point_seed(sweep_seed: int, key: str, attempt: int = 0) -> int:
    """Return the seed of a point and attempt. It is the same on every machine."""
    digest = hashlib.blake2b(f"{sweep_seed}/{key}/{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)


def plan_points(sweep: Sweep, max_model_len: int | None) -> tuple[list[Point], list[str]]:
    """Return all points in the order to run them, and notes about changes.

    Points of one shape follow one another with rising load, which shows saturation. Input is clamped to
    `max_model_len - output`, because a longer request only measures how fast the server rejects it.
    """
    if not sweep.concurrency and not sweep.request_rate:
        raise SweepError("No load is set. Pass --concurrency or --request-rate.")
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
            "Every output length reaches the server's max-model-len, so no point is left. Pass smaller --output-tokens."
        )
    return list(points.values()), notes


def _clamped(asked: int, output: int, max_model_len: int | None, notes: list[str]) -> int | None:
    if max_model_len is None or asked + output <= max_model_len:
        return asked
    room = max_model_len - output
    if room < 1:
        notes.append(
            f"LEN01: {output} output tokens leave no space for input at max-model-len {max_model_len}; skipped."
        )
        return None
    notes.append(
        f"LEN01: {asked} input + {output} output tokens exceed max-model-len {max_model_len}; input clamped to {room}."
    )
    return room


def default_requests(level: int) -> tuple[int, int]:
    """Return the requests of a closed loop, and how many of them it sends even if they take longer than ENOUGH_S."""
    # The requests before the end of the first wave are up to two per user and too few for a percentile.
    enough = 2 * level + requests_for(JUDGED_PERCENTILE)
    return max(WAVES * level, enough), max(LEAST_WAVES * level, LEAST_REQUESTS)


def planned_s(point: Point, output_tok_per_s: float) -> float:
    """Return how long a closed loop takes at most with its warm-up at an output rate: its requests, and a wave before and after them."""
    requests_per_s = output_tok_per_s / point.output_tokens
    return max(ENOUGH_S, (point.least_requests or 0) / requests_per_s) + 2 * point.level / requests_per_s


def _loads(sweep: Sweep, input_tokens: int, output_tokens: int) -> list[Point]:
    points: list[Point] = []
    for repeat in range(sweep.repeats):
        shape = Point(
            mode="closed",
            level=0,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            requests=sweep.requests,
            duration_s=sweep.duration_s,
            seed=0,
            repeat=repeat,
            traffic=sweep.traffic.name,
        )
        for level in sorted(set(sweep.concurrency)):
            point = replace(shape, level=level)
            if sweep.by_waves and sweep.requests is None:
                most, least = default_requests(level)
                turns = sweep.traffic.turns
                point = replace(point, requests=most * turns, least_requests=least * turns)
            points.append(point)
        has_end = sweep.duration_s is not None or sweep.requests is not None
        open_loop = replace(shape, mode="open", duration_s=sweep.duration_s if has_end else ENOUGH_S)
        points += [replace(open_loop, level=rate) for rate in sorted(set(sweep.request_rate))]
    return points


def beyond_cache(point: Point, traffic: Traffic, tokens: int | None) -> str:
    """Return why a point exceeds a KV cache of `tokens` tokens, as the end of a sentence; empty if it does not, or if that is unknown.

    On average a closed loop keeps its prompts, half of the responses, and the shared prefix once.
    """
    shared = min(traffic.prefix_tokens or round((traffic.prefix_share or 0.0) * point.input_tokens), point.input_tokens)
    needed = shared + (point.concurrency or 0) * (point.input_tokens - shared + point.output_tokens / 2)
    if tokens is None or needed <= tokens:
        return ""
    return f"it needs {needed:,.0f} tokens of the KV cache, which has {tokens:,}"
