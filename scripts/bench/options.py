"""Options of the benchmark, and what they ask for."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, cast

from scripts.bench.measure import Objective
from scripts.bench.points import PRESETS, Sweep
from scripts.cli.options import JsonSwitch, Option

OBJECTIVES: Final = ("ttft", "tpot", "e2e")
RESERVED: Final = ("model", "messages", "prompt", "stream", "stream_options", "max_tokens")


def _whole_numbers(text: str) -> tuple[int, ...]:
    """Read `1,8,64`: whole numbers of 1 or more, each once, in ascending order."""
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
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
        value = float(text)
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None


def _extra_body(text: str) -> Mapping[str, object]:
    """Read a JSON object that sets nothing that the benchmark itself sets."""
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise ValueError(f"a JSON object ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("a JSON object")  # noqa: TRY004 - a wrong value of an option
    body = cast("dict[str, object]", found)
    taken = [name for name in RESERVED if name in body]
    if taken:
        raise ValueError(f"a JSON object that does not set {', '.join(taken)}, because the benchmark sets it")
    return body


def _preset(text: str) -> Sweep:
    if text not in PRESETS:
        raise ValueError(" or ".join(PRESETS))
    return PRESETS[text]


@dataclass(frozen=True, kw_only=True)
class BenchServerOptions:
    """Server."""

    stack: Annotated[str | None, Option("Measure the server of this stack.", metavar="NAME")] = None
    url: Annotated[str | None, Option("Measure the server at this address, without /v1.", metavar="URL")] = None
    model: Annotated[
        str | None, Option("Name of the model; by default the first that the server serves.", metavar="ID")
    ] = None
    usd_per_hour: Annotated[
        float | None,
        Option("Price of the server; by default the price in the stack's plan.", least=0, metavar="USD"),
    ] = None
    accelerator: Annotated[
        str | None, Option("Accelerator of the server, to detect impossible figures.", metavar="NAME")
    ] = None


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Load."""

    preset: Annotated[
        Sweep | None, Option("quick (8 points, minutes) or grid (12 x 12 points).", parse=_preset, metavar="NAME")
    ] = None
    concurrency: Annotated[
        tuple[int, ...],
        Option("Closed loop: requests in flight, such as 1,8,64.", parse=_whole_numbers, metavar="LIST"),
    ] = ()
    request_rate: Annotated[
        tuple[float, ...], Option("Open loop: requests per second, such as 0.5,2,8.", parse=_rates, metavar="LIST")
    ] = ()
    input_tokens: Annotated[
        tuple[int, ...], Option("Prompt lengths, such as 128,1024.", parse=_whole_numbers, metavar="LIST")
    ] = ()
    output_tokens: Annotated[
        tuple[int, ...], Option("Answer lengths, such as 128.", parse=_whole_numbers, metavar="LIST")
    ] = ()
    requests: Annotated[int | None, Option("Requests per point.", least=1)] = None
    duration: Annotated[
        float | None, Option("Seconds per point; no request is sent afterwards.", least=0.1, metavar="SECONDS")
    ] = None
    seed: Annotated[int | None, Option("Seed of prompts and arrivals; by default drawn and recorded.", least=0)] = None
    repeats: Annotated[int, Option("Measurements of every point.", least=1, most=100)] = 1
    warm_up: Annotated[int | None, Option("Requests before each point that are not counted.", least=0)] = None
    even_arrivals: Annotated[bool, Option("Open loop: constant intervals instead of Poisson arrivals.")] = False
    stop_when_saturated: Annotated[bool, Option("Skip loads above saturation.")] = False
    completions: Annotated[bool, Option("Use /v1/completions instead of chat.")] = False
    extra_body: Annotated[
        Mapping[str, object] | None,
        Option("JSON object to add to every request.", parse=_extra_body, metavar="JSON"),
    ] = None

    def sweep(self, seed: int) -> Sweep:
        """Return the sweep that the options ask for; what they leave out comes from the preset."""
        base = self.preset or PRESETS["quick"]
        loads_given = self.concurrency or self.request_rate
        default_duration_s = base.duration_s if self.requests is None else None
        return replace(
            base,
            concurrency=self.concurrency if loads_given else base.concurrency,
            request_rate=self.request_rate,
            input_tokens=self.input_tokens or base.input_tokens,
            output_tokens=self.output_tokens or base.output_tokens,
            requests=self.requests,
            duration_s=default_duration_s if self.duration is None else self.duration,
            seed=seed,
            repeats=self.repeats,
            by_waves=self.duration is None,
        )


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Limits."""

    request_limit: Annotated[float, Option("Time limit of one request.", least=1, metavar="SECONDS")] = 600.0
    stall_limit: Annotated[
        float, Option("Longest time without a byte during an answer.", least=0.5, metavar="SECONDS")
    ] = 60.0
    point_limit: Annotated[float, Option("Time limit of one point.", least=1, metavar="SECONDS")] = 1800.0
    workers: Annotated[int | None, Option("Processes of the load generator.", least=1, most=64)] = None
    max_in_flight: Annotated[int, Option("Open loop: most requests in flight.", least=1)] = 4096


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Results."""

    out: Annotated[Path | None, Option("Folder for results and report.", metavar="DIR")] = None
    resume: Annotated[bool, Option("Continue the sweep in --out.")] = False
    slo: Annotated[
        Objective | None,
        Option(
            "Objectives for goodput in seconds, such as ttft=0.5,tpot=0.05,e2e=10.", parse=_objective, metavar="LIST"
        ),
    ] = None
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of `python -m scripts.bench`."""

    server: BenchServerOptions
    load: LoadOptions
    limits: LimitOptions
    report: ReportOptions
