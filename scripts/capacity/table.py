"""Output of the command: a table per accelerator, the reasons for closed and unknown gates, and the same as JSON."""

import math
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Console

from cloud.offers import Answers
from cloud.simulated import is_simulated
from planning.units import age
from scripts.capacity.gates import ORDER, Gate, JudgedPlace, Own, QuotaUse
from scripts.capacity.history import Sighting
from scripts.cli.tables import console, paragraph, table

_INDENT: Final = "  "


def show(places: Sequence[JudgedPlace], problems: Sequence[str], now: datetime) -> None:
    """Print the tables and their notes on stdout."""
    out = console(sys.stdout)
    groups: dict[str, list[JudgedPlace]] = {}
    for place in places:
        groups.setdefault(place.accelerator.name, []).append(place)
    for name, group in groups.items():
        _show_group(out, name, group, now)
    for reason in _reasons([place for place in places if _is_shown(place)]):
        paragraph(out, reason, prefix=_INDENT)
    if problems:
        paragraph(out, "Unknown, because the read failed:")
    for problem in problems:
        paragraph(out, problem, prefix=_INDENT)
    notes = [
        ORDER,
        "Available capacity is only known after a request. It is shown from this project's requests, with its age.",
    ]
    if any(place.price_is_assumed for place in places):
        notes.append("* The price in this region is unknown. The most expensive known price is shown.")
    if any(place.is_in_stack for place in places):
        notes.append("> This location is in the stack's settings.")
    for note in notes:
        paragraph(out, note)


def _is_shown(place: JudgedPlace) -> bool:
    return place.is_in_stack or not place.is_without


def _show_group(out: Console, name: str, group: Sequence[JudgedPlace], now: datetime) -> None:
    shown = [place for place in group if _is_shown(place)]
    where = " (local cloud, simulated)" if is_simulated() else ""
    first = group[0]
    kind, model = ("zone", first.model) if first.accelerator.is_tpu else ("region", "open to all")
    headings = (kind, "hardware", model, first.use.unit, "capacity, from own requests", "$/h")
    rows = table(
        f"{name}{where}",
        headings,
        whole=(kind, "hardware", model, first.use.unit),
        numbers=("$/h",),
        least=("hardware",),
    )
    for place in shown:
        rows.add_row(
            f"{'> ' if place.is_in_stack else ''}{place.place}",
            _answer(place.hardware),
            _answer(place.models[place.model]),
            _use(place.use) + ("" if place.quota.answer != "no" else " !"),
            _stock(place, now) or "-",
            f"{place.usd_per_hour:.2f}{'*' if place.price_is_assumed else ''}",
        )
    out.print(rows)
    others = len(group) - len(shown)
    if others:
        paragraph(out, f"{others} more {kind}s do not offer {name}.")
    out.print()


def _reasons(shown: Sequence[JudgedPlace]) -> Iterator[str]:
    """Yield the reasons for closed and unknown gates, each once with its locations. Failed reads are reported separately."""
    reasons: dict[str, list[str]] = {}
    for place in shown:
        for gate in place.gates:
            if gate.detail and gate.is_read:
                reasons.setdefault(gate.detail, []).append(place.place)
    for reason, places in reasons.items():
        yield f"{', '.join(dict.fromkeys(places))}: {reason}."


def problems_of(answers: Answers) -> Sequence[str]:
    """Return the failed reads, grouped by the command that fixes them or by reason."""
    grouped: dict[str, list[tuple[str, str]]] = {}
    for reply in answers.problems:
        subject, _, why = reply.problem.partition(": ")
        grouped.setdefault(reply.fix or why, []).append((subject, why))
    lines: list[str] = []
    for key, found in grouped.items():
        subject, why = found[0]
        several = f"{subject} and {len(found) - 1} more" if len(found) > 1 else subject
        lines.append(f"{several}: {why}" + (f". To fix it, run: {key}" if key != why else ""))
    return lines


def _answer(gate: Gate) -> str:
    return gate.answer if gate.is_read else "not read"


def _use(use: QuotaUse) -> str:
    if use.limit is None:
        return "unknown"
    limit = "no limit" if math.isinf(use.limit) else f"{use.limit:g}"
    return limit if use.used is None else f"{use.used:g} of {limit}"


def _stock(place: JudgedPlace, now: datetime) -> str:
    """Return the current requests and the last result."""
    seen = place.stock
    past = [_seen(seen, now)] if seen and seen.request not in {own.name for own in place.own} else []
    return "; ".join([*(_own(own, now) for own in place.own), *past])


def _own(own: Own, now: datetime) -> str:
    return f"{own.stack}: {own.state} {age(_since(own.created, now))}"


def _seen(seen: Sighting, now: datetime) -> str:
    at = datetime.fromisoformat(seen.at)
    ago = age(_since(at, now))
    if seen.outcome == "granted":
        return f"granted, requested {ago} ago"
    if seen.outcome == "failed":
        return f"failed {ago} ago"
    waited = age(_since(datetime.fromisoformat(seen.created), at))
    return f"waited {waited}, {ago} ago"


def _since(moment: datetime, now: datetime) -> float:
    return max((now - moment).total_seconds(), 0.0)


def to_json(place: JudgedPlace, now: datetime) -> dict[str, Any]:
    """Return one place as JSON."""
    use = place.use
    return {
        "accelerator": place.accelerator.name,
        "location": place.place,
        "open": place.is_open,
        "hardware": _gate_json(place.hardware),
        "provisioning": {"model": place.model, **_gate_json(place.models[place.model])},
        "provisioning_models": {model: _gate_json(gate) for model, gate in place.models.items()},
        "quota": {
            **_gate_json(place.quota),
            "limit": None if use.limit is None or math.isinf(use.limit) else use.limit,
            "used": use.used,
            "needed": use.needed,
            "unit": use.unit,
        },
        "requests": [
            {
                "name": own.name,
                "stack": own.stack,
                "state": own.state,
                "age_s": round(_since(own.created, now)),
                "detail": own.detail,
            }
            for own in place.own
        ],
        "stock": None
        if place.stock is None
        else {
            "outcome": place.stock.outcome,
            "at": place.stock.at,
            "age_s": round(_since(datetime.fromisoformat(place.stock.at), now)),
            "detail": place.stock.detail,
        },
        "usd_per_hour": round(place.usd_per_hour, 4),
        "price_is_assumed": place.price_is_assumed,
        "in_stack": place.is_in_stack,
    }


def _gate_json(gate: Gate) -> dict[str, str]:
    return {"answer": gate.answer, "detail": gate.detail, "source": gate.source}
