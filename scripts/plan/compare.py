"""One model on all accelerators: fit, capacity, speed and cost, and the cheapest that meets the limits."""

import json
import sys
from dataclasses import replace

from contracts.exit_codes import ExitCode
from planning.machine.hardware import ACCELERATORS
from planning.model.catalog import refuse_absent
from planning.planner import plan
from planning.question.types import Plan
from planning.solve.plan_json import plan_json
from scripts.plan.question import CommandWording, Comparison, Question, deployment_from

_NUMBERS = ("KV tokens", "concurrent", "tok/s, 1 request", "tok/s, full", "start", "$/h", "$/M tokens")
"""Headings of the numeric columns."""
_LEAST = ("start", "KV tokens", "as", "why", "tok/s, 1 request")
"""Columns that a narrow terminal loses, the least important first."""


def compare(question: Question, limits: Comparison, *, as_json: bool) -> ExitCode:
    """Print the comparison. Return 0 if an accelerator meets the limits, otherwise 2. Raises PlanningError."""
    if question.model is not None:
        refuse_absent(question.model)
    plans = plans_of(question, limits)
    chosen = cheapest(plans, limits)
    if as_json:
        rows = [{**plan_json(one, CommandWording()), "enough": is_enough(one, limits)} for one in plans]
        print(
            json.dumps(
                {"model": plans[0].model, "cheapest": chosen.accelerator if chosen else None, "rows": rows},
                indent=2,
                allow_nan=False,
            )
        )
    else:
        _table(plans, chosen, limits)
    return ExitCode.DONE if chosen else ExitCode.REFUSED


def plans_of(question: Question, limits: Comparison) -> list[Plan]:
    """Return a plan for each accelerator (or the selected one) and for a custom device, cheapest first and unpriced last."""
    asked = deployment_from(question)
    if limits.min_context is not None and asked.vllm.max_model_len is None:
        asked = replace(asked, vllm=replace(asked.vllm, max_model_len=limits.min_context))
    names = (
        [question.accelerator]
        if question.accelerator
        else [a.name for a in ACCELERATORS.values() if question.platform in {None, *a.platforms}]
    )
    rows = [plan(replace(asked, accelerator=name, device=None)) for name in names]
    if asked.device is not None:
        rows.append(plan(replace(asked, platform=None)))
    return sorted(rows, key=lambda one: (not one.cost.is_known, one.cost.usd_per_hour))


def is_enough(one: Plan, limits: Comparison) -> bool:
    """Return whether the plan fits and meets every limit."""
    return (
        one.fits
        and (limits.min_context is None or one.memory.largest_max_model_len >= limits.min_context)
        and (limits.min_concurrency is None or one.memory.max_concurrency >= limits.min_concurrency)
        and (
            limits.max_usd_per_hour is None or (one.cost.is_known and one.cost.usd_per_hour <= limits.max_usd_per_hour)
        )
    )


def cheapest(plans: list[Plan], limits: Comparison) -> Plan | None:
    """Return the cheapest plan that meets the limits."""
    priced = (one for one in plans if one.cost.is_known and is_enough(one, limits))
    return min(priced, key=lambda one: one.cost.usd_per_hour, default=None)


def _table(plans: list[Plan], chosen: Plan | None, limits: Comparison) -> None:
    from scripts.cli.tables import console, paragraph, table  # noqa: PLC0415 - only for the table

    title = f"{plans[0].model}, requests of {plans[0].vllm.max_model_len or 0:,} tokens"
    words, numbers = ("accelerator", "as", "verdict", "why"), _NUMBERS
    shown, out = table(title, (*words, *numbers), numbers=numbers, least=_LEAST), console(sys.stdout)
    for one in plans:
        style = "bold green" if one is chosen else "" if is_enough(one, limits) else "dim"
        shown.add_row(
            f"{one.accelerator}{' *' if one is chosen else ''}",
            one.quantization,
            "may fail" if one.fits and one.margin else one.verdict,
            ", ".join(f.id for f in one.stopping),
            f"{one.memory.kv_tokens:,}",
            f"{one.memory.max_concurrency:.1f}",
            f"{one.throughput.decode_tok_per_s:.0f}",
            f"{one.throughput.saturated_tok_per_s:,.0f}",
            f"{one.startup.total_s / 60:.0f} min",
            f"{one.cost.usd_per_hour:.2f}" if one.cost.is_known else "-",
            f"{one.cost.usd_per_million_tokens_saturated:.2f}" if one.cost.is_known else "-",
            style=style,
        )
    out.print(shown)
    if chosen:
        paragraph(
            out,
            f"* cheapest that meets the limits: {chosen.accelerator} on {chosen.platform}, ${chosen.cost.usd_per_hour:.2f}/h",
        )
    else:
        paragraph(out, "No accelerator meets the limits. Relax a limit or choose a smaller model.")
