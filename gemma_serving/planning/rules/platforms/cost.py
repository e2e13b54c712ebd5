"""Rules about cost on every platform."""

import math
from collections.abc import Iterator, Sequence

from gemma_serving.planning.cost.capacity_order import ceiling_problem
from gemma_serving.planning.cost.running_costs import usual_start_s
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.prices import PRICES, UNDATED, Price, region_of
from gemma_serving.planning.machine.hardware import MIN_RUN_S
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.units import HOUR_S, duration


@rule("CST02")
def _kept_warm(subject: Subject) -> RuleResult | None:
    least = subject.resolved.question.cloud_run.min_instances
    if not least:
        return None
    return RuleResult(
        f"cloudRun.minInstances is {least}, which costs ${subject.cost.idle_usd_per_day:,.2f} per day, even "
        "when idle. Google never stops it.",
        remedies=(change("cloud_run.min_instances", 0),),
        advice=(
            "No instance then runs without requests, and the first request after a pause waits for a cold start of up to "
            f"{duration(usual_start_s(subject.startup))}. docs/costs.md states when that is cheaper."
        ),
    )


@rule("CST03")
def _limit_before_the_end(subject: Subject) -> RuleResult | None:
    limit_usd, cost = subject.resolved.question.settings.max_usd, subject.cost
    if limit_usd is not None and subject.resolved.platform == "cloud-run":
        return _limit_below_a_day(subject, limit_usd)
    if limit_usd is None or cost.most_usd <= limit_usd:
        return None
    fitting_s = int(limit_usd / cost.usd_per_hour * HOUR_S // 60 * 60)
    shorter = (change("tpu.max_run_duration_s", fitting_s),) if fitting_s >= MIN_RUN_S else ()
    return RuleResult(
        f"maxUsd is {limit_usd}, but the TPU VM costs that much after {duration(fitting_s)}; its maximum is "
        f"${cost.most_usd:,.0f} ({cost.most_usd_basis}). Google does not enforce maxUsd; only a scheduled guard "
        "(docs/costs.md) will tear the stack down then.",
        remedies=(*shorter, change("max_usd", math.ceil(cost.most_usd))),
    )


def _limit_below_a_day(subject: Subject, limit_usd: int) -> RuleResult | None:
    """Return the result of a limit that instances without requests reach within a day."""
    day_usd = subject.cost.idle_usd_per_day
    if day_usd <= limit_usd:
        return None
    return RuleResult(
        f"maxUsd is {limit_usd}, but cloudRun.minInstances {subject.resolved.question.cloud_run.min_instances} costs ${day_usd:,.2f} per day, even "
        "when idle.",
        remedies=(change("cloud_run.min_instances", 0), change("max_usd", math.ceil(day_usd))),
    )


@rule("CST04")
def _old_prices(subject: Subject) -> RuleResult | None:
    today, prices = subject.resolved.question.facts.today, _prices(subject)
    # CST05 reports an unknown price, and one that a refresh did not find.
    known = (price for price in prices if not (price.is_assumed or price.missed_on))
    old = [price for price in known if today and price.is_old(today)]
    if today is None or not old:
        return None
    oldest = min(old, key=lambda price: price.as_of)
    age_days = oldest.age_days(today)
    age = UNDATED if age_days is None else f"{age_days} days old, limit {oldest.max_age_days}"
    named = f"{oldest.key}{f' in {oldest.region}' if oldest.region else ''}"
    return RuleResult(f"{len(old)} of {len(prices)} prices may be out of date: {named} ({age}).", advice=_update(old))


@rule("CST05")
def _assumed_prices(subject: Subject) -> RuleResult | None:
    prices = [price for price in _prices(subject) if price.is_assumed or price.missed_on]
    if not prices:
        return None
    missed = [price for price in prices if price.missed_on]
    if not missed:
        regions, keys = (
            ", ".join(dict.fromkeys(each)) for each in zip(*((p.region, p.key) for p in prices), strict=True)
        )
        return RuleResult(
            f"No price of {keys} in {regions} is known. The highest known price is used.", advice=_update(prices)
        )
    price = missed[0]
    found = "several prices" if price.is_unclear else "no price"
    others = f" {len(missed) - 1} more have the same problem." if len(missed) > 1 else ""
    used = "highest known price" if price.is_assumed else f"{price.kind} price"
    fixes = tuple(_without_regions(subject, missed))
    return RuleResult(
        f"Google's price catalog of {price.missed_on} has {found} for {price.key} in {price.region}. "
        f"The {used} is used (${price.usd:g}).{others}",
        remedies=fixes,
        advice=f"{'Or write' if fixes else 'Write'} the price that you pay to a price file (docs/costs.md).",
    )


@rule("CST07")
def _ceiling(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    tpu = resolved.question.tpu
    problem = ceiling_problem(tpu, resolved.prices) if tpu.zones else None
    if problem is None:
        return None
    least = problem.least_usd_per_hour
    enough = () if least is None else (change("tpu.max_usd_per_hour", math.ceil(least * 100) / 100),)
    return RuleResult(
        f"{problem.message}.",
        remedies=(*enough, change("tpu.max_usd_per_hour", None)),
        advice="Or write the price that you pay to a price file (docs/costs.md).",
    )


def _update(prices: Sequence[Price]) -> str:
    """Return how to get current prices. A refresh replaces no price of the user's own, which precedes it."""
    if all(PRICES[price.key].sku and price.kind != "own" for price in prices):
        return "Run `gemma plan prices`."
    if any(price.kind == "own" for price in prices):
        return "Update your price file and its as_of (docs/costs.md)."
    return "Write the current prices to a price file (docs/costs.md)."


def _without_regions(subject: Subject, missed: Sequence[Price]) -> Iterator[Remedy]:
    """Yield the change that removes the zones in the regions of these prices, if others are left."""
    regions = {price.region for price in missed}
    zones = subject.resolved.question.tpu.zones
    kept = tuple(zone for zone in zones if region_of(zone) not in regions)
    if kept and kept != zones:
        yield change("tpu.zones", kept)


def _prices(subject: Subject) -> tuple[Price, ...]:
    """Return the hourly prices in every location, without duplicates."""
    return tuple(dict.fromkeys(price for place in subject.cost.places for price in place.prices))
