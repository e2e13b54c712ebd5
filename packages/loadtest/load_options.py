"""Options of the load tester and their conversion to a sweep."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, cast

from loadtest.command_line import JsonSwitch, Option, Rare, number
from loadtest.errors import SweepError
from loadtest.measure import Objective
from loadtest.traffic.lengths import Lengths, parse_lengths
from loadtest.traffic.points import PRESETS, QUICK_MINUTES, Sweep
from loadtest.traffic.spec import FIXED_LENGTHS, Traffic

OBJECTIVES: Final = ("ttft", "tpot", "e2e")
RESERVED: Final = ("model", "messages", "prompt", "stream", "stream_options", "max_tokens")
_MOST_DIGITS: Final = 15


def _whole_numbers(text: str) -> tuple[int, ...]:
    """Read `1,8,64`: whole numbers of 1 or more, each once, in ascending order."""
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= _MOST_DIGITS and int(part) >= 1 for part in parts):
        raise ValueError("whole numbers of 1 or more, such as 1,8,64")
    return tuple(sorted({int(part) for part in parts}))


def _rates(text: str) -> tuple[float, ...]:
    """Read `0.5,2`: positive numbers, each once, in ascending order."""
    rates = {_positive(part) for part in text.split(",")}
    if None in rates:
        raise ValueError("positive numbers of requests per second, such as 0.5,2,8")
    return tuple(sorted(rate for rate in rates if rate is not None))


def _objective(text: str) -> Objective:
    """Read `ttft=0.5,tpot=0.05,e2e=10`, in seconds."""
    pairs = [part.strip().partition("=") for part in text.split(",")]
    limits = {name: _positive(raw) for name, _, raw in pairs}
    if not set(limits) <= set(OBJECTIVES) or None in limits.values():
        raise ValueError(f"seconds for some of {', '.join(OBJECTIVES)}, such as ttft=0.5,tpot=0.05")
    return Objective(ttft_s=limits.get("ttft"), tpot_s=limits.get("tpot"), e2e_s=limits.get("e2e"))


def _positive(text: str) -> float | None:
    try:
        value = number(text)
    except ValueError:
        return None
    return value if value > 0 else None


def _extra_body(text: str) -> Mapping[str, object]:
    """Read a JSON object that does not set fields of the benchmark."""
    try:
        found: object = json.loads(text)
        json.dumps(found, allow_nan=False)  # refuses NaN, Infinity and 1e400
    except ValueError as error:
        raise ValueError(f"a JSON object ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("a JSON object")  # noqa: TRY004 - a wrong value of an option
    body = cast("dict[str, object]", found)
    taken = [name for name in RESERVED if name in body]
    if taken:
        raise ValueError(f"a JSON object that does not set {', '.join(taken)}, because the benchmark sets it")
    return body


def _lengths(text: str) -> tuple[int, ...] | Lengths:
    """Read `128,1024`, or a distribution such as `lognormal:mean=1000,std=400`."""
    return parse_lengths(text) if ":" in text else _whole_numbers(text)


def _names(text: str) -> tuple[str, ...]:
    """Read `a,b`: each name once, in the given order."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("different names, such as a,b")
    return names


def _preset(text: str) -> Sweep:
    if text not in PRESETS:
        raise ValueError(" or ".join(PRESETS))
    return PRESETS[text]


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Server."""

    url: Annotated[
        str | None, Option("Measure the server at this address, without /v1.", metavar="URL", person=True)
    ] = None
    model: Annotated[str | None, Option("Model name. Default: the first served model.", metavar="ID")] = None
    usd_per_hour: Annotated[float | None, Rare("Price of the server, in USD per hour.", least=0, metavar="USD")] = None


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Load."""

    preset: Annotated[
        Sweep | None,
        Option(
            f"quick (3 points, {QUICK_MINUTES} minutes), grid (12 x 12 points), or input/output tokens: 8000/1000, 1000/8000, 1000/1000.",
            parse=_preset,
            metavar="NAME",
        ),
    ] = None
    concurrency: Annotated[
        tuple[int, ...],
        Option("Closed loop: concurrent requests, such as 1,8,64.", parse=_whole_numbers, metavar="LIST"),
    ] = ()
    request_rate: Annotated[
        tuple[float, ...], Option("Open loop: requests per second, such as 0.5,2,8.", parse=_rates, metavar="LIST")
    ] = ()
    input_tokens: Annotated[
        tuple[int, ...] | Lengths,
        Option(
            "Prompt lengths, such as 128,1024, or a distribution, such as lognormal:mean=1000,std=400.",
            parse=_lengths,
            metavar="LIST",
        ),
    ] = ()
    output_tokens: Annotated[
        tuple[int, ...] | Lengths,
        Option("Output lengths, such as 128, or a distribution.", parse=_lengths, metavar="LIST"),
    ] = ()
    requests: Annotated[int | None, Option("Requests per point.", least=1)] = None
    duration: Annotated[float | None, Option("Sending time per point, in seconds.", least=0.1, metavar="SECONDS")] = (
        None
    )
    seed: Annotated[int | None, Rare("Seed of prompts and arrivals. Default: random, recorded.", least=0)] = None
    repeats: Annotated[int, Rare("Measurements of every point.", least=1, most=100)] = 1
    warm_up: Annotated[int | None, Rare("Warm-up requests before each point, not counted.", least=0)] = None
    even_arrivals: Annotated[bool, Rare("Open loop: constant intervals instead of Poisson arrivals.")] = False
    stop_when_saturated: Annotated[bool, Rare("Skip loads above saturation.")] = False
    within_cache: Annotated[bool, Rare("Skip loads that exceed the server's KV cache, as the preset grid does.")] = (
        False
    )
    completions: Annotated[bool, Rare("Use /v1/completions instead of chat.")] = False
    extra_body: Annotated[
        Mapping[str, object] | None,
        Rare("JSON object to add to every request.", parse=_extra_body, metavar="JSON"),
    ] = None

    def sweep(self, seed: int, traffic: Traffic = FIXED_LENGTHS) -> Sweep:
        """Return the sweep for the options. The preset provides missing values."""
        traffic = replace(
            traffic,
            input_lengths=self.input_tokens if isinstance(self.input_tokens, Lengths) else None,
            output_lengths=self.output_tokens if isinstance(self.output_tokens, Lengths) else None,
        )
        base = self.preset or PRESETS["quick"]
        loads_given = self.concurrency or self.request_rate
        lengths_given = self.input_tokens or self.output_tokens
        amount_given = self.requests or self.duration or self.repeats > 1
        default_duration_s = base.duration_s if self.requests is None else None
        return replace(
            base,
            concurrency=self.concurrency if loads_given else base.concurrency,
            request_rate=self.request_rate,
            input_tokens=_means(self.input_tokens) or base.input_tokens,
            output_tokens=_means(self.output_tokens) or base.output_tokens,
            requests=self.requests,
            duration_s=default_duration_s if self.duration is None else self.duration,
            seed=seed,
            repeats=self.repeats,
            by_waves=self.duration is None,
            traffic=traffic,
            within_cache=self.within_cache or (base.within_cache and not self.input_tokens),
            limit_s=None if loads_given or lengths_given or amount_given else base.limit_s,
        )


def _means(lengths: tuple[int, ...] | Lengths) -> tuple[int, ...]:
    """Return the lengths, or the mean of a distribution."""
    return (max(1, round(lengths.mean)),) if isinstance(lengths, Lengths) else lengths


@dataclass(frozen=True, kw_only=True)
class TrafficOptions:
    """Requests."""

    turns: Annotated[
        int,
        Rare(
            "Requests per session. Each sends the conversation so far, and --request-rate counts sessions.",
            least=1,
            most=1000,
        ),
    ] = 1
    think_time: Annotated[
        float, Rare("Seconds between a response and the next message of a session.", least=0, metavar="SECONDS")
    ] = 0.0
    prefix_share: Annotated[
        float | None,
        Rare("Share of each prompt that is the same in all prompts.", least=0, most=1, metavar="SHARE"),
    ] = None
    prefix_tokens: Annotated[
        int | None, Rare("Tokens at the start of each prompt that are the same in all prompts.", least=1)
    ] = None
    adapters: Annotated[
        tuple[str, ...],
        Rare("Adapters that the requests name in turn, such as a,b.", parse=_names, metavar="NAMES"),
    ] = ()

    def traffic(self) -> Traffic:
        """Return the definition of the load. Raises SweepError if options conflict."""
        if self.prefix_share is not None and self.prefix_tokens is not None:
            raise SweepError("--prefix-share and --prefix-tokens cannot be combined.")
        if self.think_time and self.turns == 1:
            raise SweepError(f"--think-time {self.think_time:g} requires --turns N.")
        return Traffic(
            prefix_share=self.prefix_share or None,
            prefix_tokens=self.prefix_tokens,
            adapters=self.adapters,
            turns=self.turns,
            think_time_s=self.think_time,
        )


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Limits."""

    request_timeout: Annotated[float, Rare("Timeout of one request, in seconds.", least=1, metavar="SECONDS")] = 600.0
    stall_timeout: Annotated[
        float,
        Rare(
            "Maximum time without a byte, before and during a response, in seconds.",
            least=0.5,
            metavar="SECONDS",
        ),
    ] = 120.0
    point_timeout: Annotated[float, Rare("Timeout of one point, in seconds.", least=1, metavar="SECONDS")] = 1800.0
    workers: Annotated[int | None, Rare("Processes of the load generator.", least=1, most=64, person=True)] = None
    max_in_flight: Annotated[int, Rare("Open loop: maximum concurrent requests.", least=1)] = 4096
    max_failed: Annotated[
        float,
        Rare("Failure rate above which a point is invalid and the run fails.", least=0, most=1),
    ] = 0.01


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Results."""

    out: Annotated[Path | None, Option("Folder for results and report.", metavar="DIR", person=True)] = None
    resume: Annotated[bool, Option("Continue the sweep in --out.", person=True)] = False
    slo: Annotated[
        Objective | None,
        Option(
            "Objectives for goodput in seconds, such as ttft=0.5,tpot=0.05,e2e=10.", parse=_objective, metavar="LIST"
        ),
    ] = None
    allow_invalid: Annotated[bool, Rare("Accept invalid points. They stay invalid in every report.")] = False
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class LoadTestOptions:
    """Options of `python -m loadtest`."""

    server: ServerOptions
    load: LoadOptions
    traffic: TrafficOptions
    limits: LimitOptions
    report: ReportOptions


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `compare`."""

    before: Annotated[Path, Option("Baseline: folder of a sweep.", positional=True)]
    after: Annotated[Path, Option("Candidate: folder of a sweep.", positional=True)]
    threshold: Annotated[float, Option("Share by which a metric may get worse.", least=0, most=1)] = 0.05
    gate: Annotated[
        bool,
        Option("Succeed only if every point of BEFORE was compared and is better or same."),
    ] = False
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class ReportFolder:
    """Options of `report`."""

    folder: Annotated[Path, Option("Folder of a sweep.", positional=True)]
    as_json: JsonSwitch = False
