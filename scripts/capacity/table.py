"""Output of the command: a table per accelerator, the reasons for closed and unknown gates, and the same as JSON."""

import math
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Console

from cloud.offers import Answers, Reply
from cloud.simulated import is_simulated
from planning.units import age
from scripts.capacity.places import Gate, JudgedPlace, Own, QuotaGate
from scripts.cli.check_result import State
from scripts.cli.tables import FittedTable, console, paragraph

ORDER: Final = (
    "Locations are sorted by availability: all three gates open, then unknown, then closed. "
    "Within each group: by price, then in the order of the stack's settings."
)
_INDENT: Final = "  "
_WORDS: Final[Mapping[State, str]] = {"passed": "yes", "failed": "no", "unknown": "unknown"}


def show(places: Sequence[JudgedPlace], problems: Sequence[str], now: datetime) -> None:
    """Print the tables and their notes on stdout."""
    out = console(sys.stdout)
    for name in dict.fromkeys(place.accelerator.name for place in places):
        _show_group(out, name, [place for place in places if place.accelerator.name == name], now)
    reasons: dict[str, list[str]] = {}
    for place in filter(_is_shown, places):
        for gate in place.gates:
            if gate.detail and gate.is_read:
                reasons.setdefault(gate.detail, []).append(place.place)
    for reason, names in reasons.items():
        paragraph(out, f"{', '.join(dict.fromkeys(names))}: {reason}.", prefix=_INDENT)
    if problems:
        paragraph(out, "Unknown, because the read failed:")
    for problem in problems:
        paragraph(out, problem, prefix=_INDENT)
    paragraph(out, ORDER)
    paragraph(out, "Available capacity is only known after a request.")
    if any(place.price_is_assumed for place in places):
        paragraph(out, "* The price in this region is unknown. The most expensive known price is shown.")
    if any(place.position is not None for place in places):
        paragraph(out, "> This location is in the stack's settings.")


def _is_shown(place: JudgedPlace) -> bool:
    return place.position is not None or place.hardware.state != "failed"


def _show_group(out: Console, name: str, group: Sequence[JudgedPlace], now: datetime) -> None:
    shown = [place for place in group if _is_shown(place)]
    first = group[0]
    kind, model = ("zone", first.model) if first.accelerator.is_tpu else ("region", "open to all")
    whole = (kind, "hardware", model, first.quota.unit)
    title = f"{name}{' (local cloud, simulated)' if is_simulated() else ''}"
    rows = FittedTable(title, (*whole, "own requests", "$/h"), whole=whole, numbers=("$/h",), least=("hardware",))
    for place in shown:
        rows.add_row(
            f"{'' if place.position is None else '> '}{place.place}",
            _answer(place.hardware),
            _answer(place.models[place.model]),
            _use(place.quota),
            "; ".join(f"{own.stack}: {own.state} {age(_age_s(own, now))}" for own in place.own) or "-",
            "-" if place.usd_per_hour is None else f"{place.usd_per_hour:.2f}{'*' if place.price_is_assumed else ''}",
        )
    out.print(rows)
    if len(shown) < len(group):
        paragraph(out, f"{len(group) - len(shown)} more {kind}s do not offer {name}.")
    out.print()


def problems_of(answers: Answers) -> Sequence[str]:
    """Return the failed reads, grouped by the command that fixes them or by reason."""
    grouped: dict[str, list[Reply]] = {}
    for reply in answers.problems:
        grouped.setdefault(reply.fix or reply.problem, []).append(reply)
    lines: list[str] = []
    for first, *others in grouped.values():
        fix = f". To fix it, run: {first.fix}" if first.fix else ""
        lines.append(f"{first.what}{f' and {len(others)} more' if others else ''}: {first.problem}{fix}")
    return lines


def _answer(gate: Gate) -> str:
    return _WORDS[gate.state] if gate.is_read else "not read"


def _use(quota: QuotaGate) -> str:
    if quota.limit is None:
        return "unknown"
    limit = "no limit" if math.isinf(quota.limit) else f"{quota.limit:g}"
    return (limit if quota.used is None else f"{quota.used:g} of {limit}") + (" !" if quota.state == "failed" else "")


def _age_s(own: Own, now: datetime) -> float:
    return max((now - own.created).total_seconds(), 0.0)


def to_json(place: JudgedPlace, now: datetime) -> dict[str, Any]:
    """Return one place as JSON."""
    quota = place.quota
    return {
        "accelerator": place.accelerator.name,
        "location": place.place,
        "open": place.group == 0,
        "hardware": _gate_json(place.hardware),
        "provisioning": {"model": place.model, **_gate_json(place.models[place.model])},
        "provisioning_models": {model: _gate_json(gate) for model, gate in place.models.items()},
        "quota": {
            **_gate_json(quota),
            "limit": None if quota.limit is None or math.isinf(quota.limit) else quota.limit,
            "used": quota.used,
            "needed": quota.needed,
            "unit": quota.unit,
        },
        "requests": [
            {
                "name": one.name,
                "stack": one.stack,
                "state": one.state,
                "age_s": round(_age_s(one, now)),
                "detail": one.detail,
            }
            for one in place.own
        ],
        "usd_per_hour": None if place.usd_per_hour is None else round(place.usd_per_hour, 4),
        "price_is_assumed": place.price_is_assumed,
        "in_stack": place.position is not None,
    }


def _gate_json(gate: Gate) -> dict[str, str]:
    return {"answer": _WORDS[gate.state], "detail": gate.detail, "source": gate.source}
