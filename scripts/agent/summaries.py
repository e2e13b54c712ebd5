"""Summaries of a command's document for a model. The keys are those of the document; `full: true` returns all of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from contracts.fields import as_mapping, as_sequence

DEFAULT_LIMIT: Final = 5
_MOST_PLACES: Final = 10
"""Number of rows for all accelerators together, without `limit`."""
Document = Mapping[str, object]
Arguments = Mapping[str, object]

_COSTS: Final = frozenset(
    {"prices", "bill", "windows", "commitments", "break_even", "cold_start", "idle_billing_s", "places"}
)
_MACHINE: Final = ("accelerator", "platform", "verdict", "enough", "memory", "startup", "throughput")
_WAY: Final = ("mode", "chosen", "start_s", "memory_gib", "usd_per_hour", "cold_start_usd")
_POINT: Final = (
    *("point", "valid", "invalid_reasons", "completed", "failed", "request_throughput", "output_throughput"),
    *("median_ttft_ms", "median_tpot_ms", "median_e2el_ms"),
    *("usd_per_million_output_tokens", "saturation", "simulated"),
)
_STEADY: Final = (
    *("requests", "highest_percentile", "good_share"),
    *(f"{key}_{name}_ms" for name in ("ttft", "tpot", "e2el") for key in ("median", "p90", "p95", "p99")),
)


def _plan(document: Document, arguments: Arguments) -> Document:
    cost = as_mapping(document.get("cost"))
    found = dict(document)
    if not arguments.get("costs"):
        found["cost"] = _without(cost, *_COSTS)
    if ways := _objects(document.get("loading_modes")):
        found["loading_modes"] = [_only(way, *_WAY) for way in ways]
    return {**found, "findings": _findings(document)}


def _findings(document: Document) -> Sequence[object]:
    found = _objects(document.get("findings"))
    return [
        _only(one, "id", "severity", "message", *(() if one.get("severity") == "info" else ("remedy",)))
        for one in found
    ]


def _machines(document: Document, arguments: Arguments) -> Document:
    rows = sorted(_objects(document.get("rows")), key=lambda row: not row.get("enough"))  # stable: by price within each
    most = _limit(arguments)
    others = [f"{row.get('accelerator')}: {row.get('verdict')}" for row in rows[most:]]
    shown = _cut("rows", rows, [_machine(row) for row in rows], most)
    return {**document, **shown, **({"other_rows": others} if others else {})}


def _machine(row: Document) -> Document:
    cost = _only(as_mapping(row.get("cost")), "usd_per_hour", "max_usd", "usd_per_million_tokens")
    findings = [f"{one.get('severity')} {one.get('id')}" for one in _objects(row.get("findings"))]
    return {**_only(row, *_MACHINE), "cost": cost, "findings": findings}


def _solutions(document: Document, arguments: Arguments) -> Document:
    rows = _objects(document.get("rows"))
    shown = [{key: value for key, value in row.items() if value is not None and key != "shown"} for row in rows]
    return {**document, **_cut("rows", rows, shown, _limit(arguments))}


def _places(document: Document, arguments: Arguments) -> Document:
    """Keep the best places of each accelerator: the command sorts them by promise."""
    places = _objects(document.get("locations"))
    kinds = dict.fromkeys(str(place.get("accelerator")) for place in places)
    most = _limit(arguments) if arguments.get("limit") else max(1, _MOST_PLACES // max(1, len(kinds)))
    each = {kind: [place for place in places if place.get("accelerator") == kind] for kind in kinds}
    counts = {kind: f"{sum(bool(one.get('open')) for one in found)} of {len(found)}" for kind, found in each.items()}
    shown = [_place(place) for found in each.values() for place in found[:most]]
    return {**document, "open_places": counts, **_cut("locations", places, shown, len(shown))}


def _place(place: Document) -> Document:
    gates = {
        key: _only(gate, "model", "answer", *(() if gate.get("answer") == "yes" else ("detail",)))
        for key in ("hardware", "provisioning", "quota")
        if (gate := as_mapping(place.get(key)))
    }
    rest = _only(place, "accelerator", "location", "open", "requests", "usd_per_hour", "in_stack")
    return {
        **{key: value for key, value in rest.items() if value not in (None, [], False)},
        "open": place.get("open"),
        **gates,
    }


def _checks(document: Document, _arguments: Arguments) -> Document:
    """Keep missing and unknown checks in full, and only the names of the rest."""
    checks = _objects(document.get("checks"))
    good = [str(one.get("check")) for one in checks if one.get("status") == "ok"]
    rest = [one for one in checks if one.get("status") != "ok"]
    return {
        **document,
        "checks": [_only(one, "check", "status", "detail", "fix") for one in rest],
        "ok_checks": good,
    }


def _stacks(document: Document, _arguments: Arguments) -> Document:
    stacks = _objects(document.get("stacks"))
    deployed = [one for one in stacks if one.get("deployed") is not False]
    names = [str(one.get("stack")) for one in stacks if one.get("deployed") is False]
    if len(stacks) == 1:
        return document
    return {**document, "stacks": deployed, "not_deployed": names}


def _smoke(document: Document, _arguments: Arguments) -> Document:
    found = [_without(one, "values", "elapsed_s") for one in _objects(document.get("checks"))]
    return {**document, "checks": [{key: value for key, value in one.items() if value} for one in found]}


def _benchmark(document: Document, _arguments: Arguments) -> Document:
    points = [
        {**_only(one, *_POINT), "steady": _only(as_mapping(one.get("steady")), *_STEADY)}
        for one in _objects(document.get("points"))
    ]
    return {**_without(document, "files", "out"), "points": points}


SUMMARIES: Final[Mapping[str, Callable[[Document, Arguments], Document]]] = {
    "plan": _plan,
    "compare_machines": _machines,
    "solve": _solutions,
    "capacity": _places,
    "doctor": _checks,
    "status": _stacks,
    "smoke": _smoke,
    "benchmark": _benchmark,
}
"""Summaries by tool."""
LIMITED: Final = frozenset({"compare_machines", "solve", "capacity"})
"""Tools whose answer has rows and that take `limit`."""


def summary_of(tool: str, document: Document, arguments: Arguments) -> Document:
    """Return the summary of a command's document."""
    summary = SUMMARIES.get(tool)
    return document if summary is None else summary(document, arguments)


def _cut(key: str, rows: Sequence[Document], shown: Sequence[Document], most: int) -> Document:
    count = min(len(shown), most)
    return {key: list(shown[:most]), **({f"{key}_in_all": len(rows)} if count < len(rows) else {})}


def _limit(arguments: Arguments) -> int:
    found = arguments.get("limit")
    return found if isinstance(found, int) else DEFAULT_LIMIT


def _objects(value: object) -> Sequence[Document]:
    return [as_mapping(item) for item in as_sequence(value)]


def _only(found: Document, *keys: str) -> dict[str, object]:
    return {key: found[key] for key in keys if key in found}


def _without(found: Document, *keys: str) -> dict[str, object]:
    return {key: value for key, value in found.items() if key not in keys}
