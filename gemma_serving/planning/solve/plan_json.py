"""A plan in the format of `scripts.plan --json`: summary, workload, and costs with the location, date and URL of each price."""

from dataclasses import asdict
from typing import Any

from msgspec import structs

from gemma_serving.planning.data.prices import Price
from gemma_serving.planning.question.types import CostPlan, FormStep, Plan, RunningCosts, rounded
from gemma_serving.planning.solve.remedy_wording import Wording, finding_json, together_json


def plan_json(plan: Plan, wording: Wording) -> dict[str, Any]:
    """Return a plan in JSON types; `wording` has the caller's keys."""
    document = asdict(plan.summary())
    document["vllm_version"] = plan.vllm_version or None
    document["vulnerabilities"] = list(plan.vulnerabilities)
    document["memory"] |= rounded(plan.memory, kv_margin_gib=3)
    document["startup"] |= rounded(plan.known_startup, load_low_s=1, load_high_s=1, compile_low_s=1, compile_high_s=1)
    document["startup"] |= rounded(plan.known_startup, total_low_s=1, total_high_s=1, beside_s=1)
    document["startup"]["stages"] = plan.known_startup and [
        {**structs.asdict(stage), **rounded(stage, begins_s=1, takes_s=1)} for stage in plan.known_startup.stages
    ]
    document["throughput"] |= rounded(plan.known_throughput, ttft_s=3)
    if plan.workload is not None:
        document["workload"] = plan.workload.to_json()
    if plan.cost.is_known:
        document["cost"] |= costs_json(plan.cost, plan.running)
    else:
        document["cost"] = None
        unknown = [key for key in document.get("workload", ()) if key.startswith("usd_")]
        document.get("workload", {}).update(dict.fromkeys(unknown))
    return {
        **document,
        "findings": [finding_json(finding, wording) for finding in plan.findings],
        "together": [together_json(one, wording) for one in plan.together],
    }


def _form_json(step: FormStep) -> dict[str, object]:
    """Return a form of capacity; `skipped` is the reason why it is not requested in a zone."""
    return {
        "form": step.model,
        "wait_s": step.wait_s,
        "run_s": step.run_s,
        "zones": [
            {"zone": one.zone, **rounded(one, usd_per_hour=4), "skipped": one.skipped or None} for one in step.places
        ],
    }


def costs_json(cost: CostPlan, running: RunningCosts) -> dict[str, object]:
    """Return the cost keys that the summary does not have, in JSON types."""
    always_on = round(running.always_on_usd_per_month, 2)
    even = rounded(running, even_requests_per_day=4, even_hours_per_day=4, shortest_window_h=4)
    return {
        **rounded(cost, lowest_usd_per_hour=4),
        "places": [
            {"place": one.place, **rounded(one, usd_per_hour=4), "is_assumed": one.is_assumed} for one in cost.places
        ],
        "order": [_form_json(step) for step in cost.order],
        "prices_as_of": cost.prices_as_of,
        "prices": [_price_json(price) for price in dict.fromkeys(price for one in cost.places for price in one.prices)],
        "bill": [
            {**structs.asdict(part), **rounded(part, amount=4, usd=4), "price": part.price and _price_json(part.price)}
            for part in running.bill
        ],
        "cold_start": {
            key.removeprefix("cold_start_"): value
            for key, value in rounded(running, cold_start_s=1, cold_start_usd=4).items()
        },
        **rounded(running, idle_usd_per_hour=4),
        "idle_billing_s": running.idle_billing_s,
        "always_on": {"what": running.always_on, "usd_per_month": always_on},
        **rounded(running, metrics_usd_per_month=4),
        "commitments": [{"what": what, "usd_per_month": round(usd, 2)} for what, usd in running.commitments],
        "windows": [
            {"hours_per_day": one.hours_per_day, **rounded(one, usd_per_month=2, usd_per_served_hour=4)}
            for one in running.windows
        ],
        "break_even": {key.removeprefix("even_"): value for key, value in even.items()},
    }


def _price_json(price: Price) -> dict[str, object]:
    """Return a price with its location, date and URL."""
    texts = {"key": price.key, "region": price.region or None, "usd": price.usd, "as_of": price.as_of or None}
    return {**texts, "url": price.url or None, "is_own": price.kind == "own", "is_assumed": price.is_assumed}
