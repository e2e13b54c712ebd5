"""A plan in the format of `scripts.plan --json`: summary, workload, and costs with the location, date and URL of each price."""

import math
from dataclasses import asdict
from typing import Any

from planning.data.prices import Price
from planning.question.types import CostPlan, Plan, RunningCosts
from planning.solve.wording import FIELDS, Wording, finding_json


def plan_json(plan: Plan, wording: Wording = FIELDS) -> dict[str, Any]:
    """Return a plan in JSON types; `wording` has the caller's keys."""
    document = asdict(plan.summary())
    document["vllm_version"] = plan.vllm_version or None
    document["memory"]["kv_margin_gib"] = round(plan.memory.kv_margin_gib, 3)
    document["startup"] |= {
        name: round(getattr(plan.startup, name), 1)
        for name in ("load_low_s", "load_high_s", "compile_low_s", "compile_high_s", "total_low_s", "total_high_s")
    }
    document["throughput"]["ttft_s"] = round(plan.throughput.ttft_s, 3)
    if plan.workload is not None:
        document["workload"] = plan.workload.to_json()
    if plan.cost.is_known:
        document["cost"] |= costs_json(plan.cost, plan.running)
    else:
        document = _without_dollars(document)
    return {**document, "findings": [finding_json(finding, wording) for finding in plan.findings]}


def _without_dollars(document: dict[str, Any]) -> dict[str, Any]:
    workload = document.get("workload")
    if workload is not None:
        workload = {key: None if key.startswith("usd_") else value for key, value in workload.items()}
    return {**document, "cost": None, **({} if workload is None else {"workload": workload})}


def costs_json(cost: CostPlan, running: RunningCosts) -> dict[str, object]:
    """Return the cost keys that the summary does not have, in JSON types."""
    prices = {price: None for place in cost.places for price in place.prices}
    return {
        "lowest_usd_per_hour": round(cost.lowest_usd_per_hour, 4),
        "places": [
            {"place": one.place, "usd_per_hour": round(one.usd_per_hour, 4), "is_assumed": one.is_assumed}
            for one in cost.places
        ],
        "prices_as_of": cost.prices_as_of,
        "prices": [price_json(price) for price in prices],
        "bill": [
            {
                "name": part.name,
                "amount": round(part.amount, 4),
                "unit": part.unit,
                "basis": part.basis,
                "usd": round(part.usd, 4),
                "price": price_json(part.price) if part.price else None,
            }
            for part in running.bill
        ],
        "cold_start": {"s": round(running.cold_start_s, 1), "usd": round(running.cold_start_usd, 4)},
        "idle_usd_per_hour": round(running.idle_usd_per_hour, 4),
        "idle_billing_s": running.idle_billing_s,
        "always_on": {"what": running.always_on, "usd_per_month": round(running.always_on_usd_per_month, 2)},
        "metrics_usd_per_month": _finite(running.metrics_usd_per_month),
        "commitments": [
            {"what": what, "usd_per_month": round(usd_per_month, 2)} for what, usd_per_month in running.commitments
        ],
        "windows": [
            {
                "hours_per_day": window.hours_per_day,
                "usd_per_month": round(window.usd_per_month, 2),
                "usd_per_served_hour": _finite(window.usd_per_served_hour),
            }
            for window in running.windows
        ],
        "break_even": {
            "requests_per_day": _finite(running.even_requests_per_day),
            "hours_per_day": _finite(running.even_hours_per_day),
            "shortest_window_h": _finite(running.shortest_window_h),
        },
    }


def price_json(price: Price) -> dict[str, object]:
    """Return a price with its location, date and URL."""
    return {
        "key": price.key,
        "region": price.region or None,
        "usd": price.usd,
        "as_of": price.as_of or None,
        "url": price.url or None,
        "is_own": price.is_own,
        "is_assumed": price.is_assumed,
    }


def _finite(number: float | None) -> float | None:
    return round(number, 4) if number is not None and math.isfinite(number) else None
