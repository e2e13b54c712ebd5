"""Output of the command: a table per accelerator, the reasons for closed and unknown checks, and the same as JSON."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Console

from gemma_serving.cloud.offers import GoogleResponse, GoogleResponses
from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.planning.units import age
from gemma_serving.scripts.cli.check_result import State
from gemma_serving.scripts.cli.command import print_text
from gemma_serving.scripts.cli.tables import FittedTable, console, paragraph
from gemma_serving.scripts.doctor.api import (
    Diagnosis,
    ExistingRequest,
    JudgedForm,
    JudgedPlace,
    LocationCheck,
    QuotaCheck,
    report_entries,
    width_of,
)
from gemma_serving.scripts.stack.costs import rounded

ORDER: Final = (
    "First the locations that offer the form and have quota, then the unknown ones, then the others. "
    "Each group is sorted by price, then in the order of the stack's settings."
)
_INDENT: Final = "  "
_STATES: Final[Mapping[str, str]] = {"WAITING_FOR_RESOURCES": "WAITING"}
"""Short forms of states for the table. The lines below it have the full names."""
_WORDS: Final[Mapping[State, str]] = {"passed": "yes", "failed": "no", "unknown": "unknown"}


def show(
    places: Sequence[JudgedPlace], problems: Sequence[str], now: datetime, findings: Sequence[Diagnosis] = ()
) -> None:
    """Print the tables and their notes on stdout, and the findings about the stack's own locations."""
    out = console(sys.stdout)
    for name in dict.fromkeys(place.accelerator.name for place in places):
        _show_group(out, name, [place for place in places if place.accelerator.name == name], now)
    _show_reasons(out, places)
    _show_requests(out, places, now)
    if problems:
        paragraph(out, "Unknown, because the read failed:")
    for problem in problems:
        paragraph(out, problem, prefix=_INDENT)
    paragraph(out, ORDER)
    paragraph(out, "Available capacity is only known after a request.")
    for applies, text in _legend(places):
        if applies:
            paragraph(out, text)
    if findings:
        print_text(f"\n{report_entries(findings, width=width_of(sys.stdout))}")


def _show_reasons(out: Console, places: Sequence[JudgedPlace]) -> None:
    """Print why checks are closed or unknown."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for place in places:
        if place.position is not None or not _is_shown(place):
            continue  # the findings are about the stack's own
        for check, form in _checks(place):
            if check.state != "passed" and check.detail and check.is_read:
                reasons.setdefault(check.detail, {}).setdefault(place.place, []).append(form)
    count = {place.place: len(place.forms) for place in places}
    for reason, found in reasons.items():
        names = [
            f"{name} ({', '.join(forms)})" if all(forms) and len(forms) < count[name] else name
            for name, forms in found.items()
        ]
        paragraph(out, f"{', '.join(names)}: {reason}.", prefix=_INDENT)


def _show_requests(out: Console, places: Sequence[JudgedPlace], now: datetime) -> None:
    """Print this project's requests, and why they wait or failed."""
    for place in places:
        for request in place.requests:
            if request.model is not None:
                short = f" ({request.shortage.sentence.rstrip('.')})" if request.shortage else ""
                text = f"{place.place}, {request.model}: stack {request.stack} is {request.state}, {age(_age_s(request, now))} old{short}."
                paragraph(out, text, prefix=_INDENT)


def _legend(places: Sequence[JudgedPlace]) -> Iterator[tuple[bool, str]]:
    """Yield each mark's meaning, and whether a table has the mark."""
    forms = [form for place in places for form in place.forms]
    is_assumed = any(form.price_is_assumed for form in (*(place.asked for place in places), *forms))
    yield is_assumed, "* The price in this region is unknown. The most expensive known price is shown."
    is_in_settings = any(place.position is not None for place in places)
    yield is_in_settings, "> This location and form are in the stack's settings."
    is_above = any(form.not_requested for form in forms)
    yield is_above, "^ `up` does not request this form here: its price is above tpu.maxUsdPerHour, or is unknown."


def _is_shown(place: JudgedPlace) -> bool:
    return place.position is not None or place.hardware.state != "failed"


def _checks(place: JudgedPlace) -> Sequence[tuple[LocationCheck, str]]:
    """Return the checks of a location with those of all its forms, each with the form; "" for all forms."""
    if not place.forms:
        return [(check, "") for check in place.checks]
    forms = [(check, form.model) for form in place.forms for check in (form.accepted, form.quota)]
    return [(place.hardware, ""), *forms]


def _show_group(out: Console, name: str, group: Sequence[JudgedPlace], now: datetime) -> None:
    shown = [place for place in group if _is_shown(place)]
    title = f"{name}{' (local cloud, simulated)' if is_simulated() else ''}"
    is_tpu = group[0].accelerator.is_tpu
    kind = "zone" if is_tpu else "region"
    out.print(_forms(title, shown, now) if is_tpu else _instances(title, shown, now))
    if len(shown) < len(group):
        paragraph(out, f"{len(group) - len(shown)} more {kind}s do not offer {name}.")
    out.print()


def _forms(title: str, shown: Sequence[JudgedPlace], now: datetime) -> FittedTable:
    """Return a table with a row for each form of capacity in each zone."""
    headings = ("zone", "form", "offered", "quota", "$/h", "last request")
    whole = ("zone", "form", "offered", "quota")
    rows = FittedTable(title, headings, whole=whole, numbers=("$/h",))
    for place in shown:
        for form in place.forms:
            last = form.last_answer
            rows.add_row(
                f"{_mark(form.in_stack)}{place.place}",
                form.model,
                _answer(place.hardware if place.hardware.state != "passed" else form.accepted),
                _use(form.quota),
                f"{_price(form.usd_per_hour, is_assumed=form.price_is_assumed)}{'^' if form.not_requested else ''}",
                "none" if last is None else _last_answer(last, now),
            )
    return rows


def _instances(title: str, shown: Sequence[JudgedPlace], now: datetime) -> FittedTable:
    """Return a table with a row for each region of a Cloud Run GPU."""
    whole = ("region", "hardware", "open to all", "GPUs")
    rows = FittedTable(title, (*whole, "own requests", "$/h"), whole=whole, numbers=("$/h",), least=("hardware",))
    for place in shown:
        rows.add_row(
            f"{_mark(place.position is not None)}{place.place}",
            _answer(place.hardware),
            _answer(place.asked.accepted),
            _use(place.asked.quota),
            "; ".join(f"{request.stack}: {request.state} {age(_age_s(request, now))}" for request in place.requests)
            or "-",
            _price(place.asked.usd_per_hour, is_assumed=place.asked.price_is_assumed),
        )
    return rows


def _mark(is_in_settings: bool) -> str:
    return "> " if is_in_settings else ""


def _price(usd_per_hour: float | None, *, is_assumed: bool) -> str:
    return "-" if usd_per_hour is None else f"{usd_per_hour:.2f}{'*' if is_assumed else ''}"


def _last_answer(request: ExistingRequest, now: datetime) -> str:
    """Return a request's state, age and cause, narrow enough for 80 columns. The lines below the table have the stack."""
    cause = f" {request.shortage.cause}" if request.shortage else ""
    return f"{_STATES.get(request.state, request.state)} {age(_age_s(request, now))}{cause}"


def problems_of(responses: GoogleResponses) -> Sequence[str]:
    """Return the failed reads, grouped by the command that fixes them or by reason."""
    grouped: dict[str, list[GoogleResponse]] = {}
    for response in responses.problems:
        grouped.setdefault(response.fix or response.problem, []).append(response)
    lines: list[str] = []
    for first, *others in grouped.values():
        fix = f". To fix it, run: {first.fix}" if first.fix else ""
        lines.append(f"{first.what}{f' and {len(others)} more' if others else ''}: {first.problem}{fix}")
    return lines


def _answer(check: LocationCheck) -> str:
    return _WORDS[check.state] if check.is_read else "not read"


def _use(quota: LocationCheck) -> str:
    if not isinstance(quota, QuotaCheck) or quota.read.known_limit is None:
        return "unknown"
    limit = "no limit" if math.isinf(quota.read.known_limit) else f"{quota.read.known_limit:g}"
    used = "" if quota.read.known_use is None else f"{quota.read.known_use:g} of "
    return f"{used}{limit}{' !' if quota.state == 'failed' else ''}"


def _age_s(request: ExistingRequest, now: datetime) -> float:
    return max((now - request.created).total_seconds(), 0.0)


def to_json(place: JudgedPlace, now: datetime) -> dict[str, Any]:
    """Return one place as JSON."""
    return {
        "accelerator": place.accelerator.name,
        "location": place.place,
        "open": place.group == 0,
        "hardware": _check_json(place.hardware),
        "provisioning": {"model": place.asked.model, **_check_json(place.asked.accepted)},
        "quota": _quota_json(place.asked.quota),
        "requests": [_request_json(one, now) for one in place.requests],
        "usd_per_hour": rounded(place.asked.usd_per_hour),
        "price_is_assumed": place.asked.price_is_assumed,
        "in_stack": place.position is not None,
        "forms": [_form_json(form, now) for form in place.forms],
    }


def _form_json(form: JudgedForm, now: datetime) -> dict[str, Any]:
    last = form.last_answer
    return {
        "form": form.model,
        "in_stack": form.in_stack,
        "not_requested": form.not_requested or None,
        "offered": _check_json(form.accepted),
        "quota": _quota_json(form.quota),
        "usd_per_hour": rounded(form.usd_per_hour),
        "price_is_assumed": form.price_is_assumed,
        "last_answer": None if last is None else _request_json(last, now),
    }


def _quota_json(check: LocationCheck) -> dict[str, Any]:
    if not isinstance(check, QuotaCheck):
        return {**_check_json(check), **dict.fromkeys(("id", "limit", "used", "needed", "unit"))}
    read = check.read
    limit = read.known_limit
    return {
        **_check_json(check),
        "id": read.quota.quota_id,
        "limit": None if limit is None or math.isinf(limit) else limit,
        "used": read.known_use,
        "needed": read.needed,
        "unit": read.quota.unit,
    }


def _request_json(one: ExistingRequest, now: datetime) -> dict[str, Any]:
    short = one.shortage
    return {
        "name": one.name,
        "stack": one.stack,
        "state": one.state,
        "age_s": round(_age_s(one, now)),
        "detail": one.detail,
        "cause": short.cause if short else None,
        "evidence": list(short.evidence) if short else [],
    }


def _check_json(check: LocationCheck) -> dict[str, str]:
    return {"answer": _WORDS[check.state], "detail": check.detail, "source": check.source}
