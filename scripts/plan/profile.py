"""The cost per day of the modes of a server: a table, the reason, and JSON."""

from collections.abc import Iterator
from typing import Any, Final

from gemma_serving.planning.data.images import image_words
from gemma_serving.planning.solve.profiles import DAY_H, HOUR_MINUTES, Choice, Kind, Profile, Way
from gemma_serving.planning.units import format_duration
from gemma_serving.scripts.cli.tables import FittedTable

_WORDS: Final[dict[Kind, str]] = {
    "flex-start": "flex-start",
    "on-demand": "on demand, always on",
    "scale-to-zero": "Cloud Run, scales to zero",
    "min-instance": "Cloud Run, minInstances 1",
}
_NUMBERS: Final = ("billed h", "$/day", "$/month", "start", "$/M")
_HEADINGS: Final = ("way and model", "on", *_NUMBERS)
_LEAST: Final = ("$/M", "start", "billed h")
"""Columns that a narrow terminal loses, the least important first."""


def profile_table(choice: Choice) -> FittedTable:
    """Return the table of the ways, the best first."""
    shown = FittedTable(f"Cost per day: {_traffic(choice.profile)}", _HEADINGS, numbers=_NUMBERS, least=_LEAST)
    for way in choice.ways:
        one = way.solution
        mark = "*" if one.is_price_assumed else ""
        end = "stops idle" if way.kind == "scale-to-zero" else "no end"
        if way.run_s is not None:
            end = f"ends: {format_duration(way.run_s)}"
        image = f"\n  image {image_words(one.image)}" if one.image else ""
        shown.add_row(
            f"{_WORDS[way.kind]}\n  {one.served.words}{image}",
            f"{one.machine}\n{end}",
            f"{way.billed_h:.1f}",
            f"{way.usd_per_day:,.2f}{mark}",
            f"{way.usd_per_month:,.0f}{mark}",
            _start(way),
            f"{way.usd_per_million_tokens:.3f}",
        )
    return shown


def decision(choice: Choice) -> str:
    """Return the choice and the best way of another kind, with the figures that decide."""
    best = choice.chosen
    other = choice.other
    cheapest = choice.cheapest
    traffic = _traffic(choice.profile)
    head = f"{traffic[:1].upper()}{traffic[1:]}: {_name(best)}"
    if choice.goal == "latency" and best is not cheapest:
        shortest, longer = best.solution.request_s, cheapest.solution.request_s
        return (
            f"{head} has the shortest request, {shortest:.1f} s at {_day(best)}. "
            f"The cheapest, {_name(cheapest)}, takes {longer:.1f} s at {_day(cheapest)}."
        )
    if other is None:
        return f"{head} is the only choice, at {_day(best)}."
    if choice.goal == "throughput":
        return (
            f"{head} costs ${best.usd_per_million_tokens:.3f} per 1M tokens, at {_day(best)}. "
            f"{_name(other)} costs ${other.usd_per_million_tokens:.3f}, at {_day(other)}."
        )
    return f"{head} costs {_hours(best)}. {_name(other)} costs {_hours(other)}."


def conditions(choice: Choice) -> Iterator[str]:
    """Yield the other costs of the chosen mode, and the mode that avoids them."""
    best = choice.chosen
    other = choice.other
    start = _start(choice.chosen)
    if best.solution.image:
        yield f"Its image is {image_words(best.solution.image)}."
    if choice.stays is not None:
        count = best.starts_per_day
        each, them = "Its cold start of each day makes", "it"
        if count > 1:
            each, them = f"Each of its {count:.0f} cold starts per day makes", "them"
        yield f"{each} a client wait up to {start}. minInstances 1 avoids {them}, at {_day(choice.stays)}."
    if best.run_s is None:
        return
    again = (
        f"Deploy it each day, at least {start} before the first request. "
        "`maxAge` and `maxUsd` count over all days, so set them higher than their sum, or not at all."
    )
    if best.billed_h >= DAY_H:
        again = "`tpu.renewBefore` starts the next one in time."
    yield (
        f"A flex-start slice may wait for capacity, which is not billed, and its server starts in {start}. "
        f"Google deletes it {format_duration(best.run_s)} after capacity is granted. {again}"
    )
    if other is not None and other.run_s is None:
        yield f"If a server must start without waiting for capacity, choose {_name(other)}, at {_day(other)}."


def profile_json(choice: Choice) -> dict[str, Any]:
    """Return the choice in JSON types."""
    return {
        "hours_per_day": choice.profile.hours_per_day,
        "traffic": "burst" if choice.profile.busy_minutes < HOUR_MINUTES else "steady",
        "busy_minutes_per_hour": choice.profile.busy_minutes,
        "ways": [{**_way_json(way), "chosen": way is choice.chosen} for way in choice.ways],
        "other": None if choice.other is None else _way_json(choice.other),
        "decision": decision(choice),
        "conditions": list(conditions(choice)),
    }


def _way_json(way: Way) -> dict[str, Any]:
    resolved = way.solution.subject.resolved
    return {
        "kind": way.kind,
        "model": resolved.model_id,
        "quantization": resolved.scheme.name,
        "accelerator": resolved.accelerator.name,
        "usd_per_hour": round(way.usd_per_hour, 4),
        "billed_hours_per_day": round(way.billed_h, 3),
        "usd_per_day": round(way.usd_per_day, 2),
        "usd_per_month": round(way.usd_per_month, 2),
        "usd_per_million_tokens": round(way.usd_per_million_tokens, 4),
        "cold_starts_per_day": way.starts_per_day,
        "start_s": round(way.start_s),
        "ends_after_s": way.run_s,
        "request_s": round(way.solution.request_s, 2),
    }


def _traffic(profile: Profile) -> str:
    is_burst = profile.busy_minutes < HOUR_MINUTES
    shape = f"one burst of {profile.busy_minutes:g} min per hour" if is_burst else "steady traffic"
    return f"{shape} for {profile.hours_per_day:g} h per day"


def _name(way: Way) -> str:
    """Return the model without its owner, the accelerator, and the way."""
    _, _, model = way.solution.served.words.partition("/")
    return f"{model} on {way.solution.subject.resolved.accelerator.name} ({_WORDS[way.kind]})"


def _start(way: Way) -> str:
    return f"{max(round(way.start_s / 60), 1)} min"


def _day(way: Way) -> str:
    return f"${way.usd_per_day:,.2f}/day"


def _hours(way: Way) -> str:
    return f"{_day(way)}: {round(way.billed_h, 1):g} billed h at ${way.usd_per_hour:.2f}/h"
