"""One model on all accelerators: fit, capacity, speed and cost, and the cheapest that meets the limits."""

import json
import sys
from dataclasses import dataclass, replace

from contracts.exit_codes import ExitCode
from planning.data.images import built_name
from planning.machine.hardware import ACCELERATORS
from planning.model.catalog import refuse_absent
from planning.planner import plan
from planning.question.fields import changed
from planning.question.types import Deployment, Plan
from planning.solve.plan_json import plan_json
from scripts.plan.question import CommandWording, Comparison, Question, deployment_from

_NUMBERS = ("KV tokens", "concurrent", "tok/s, 1 request", "tok/s, full", "start", "$/h", "$/M tokens")
"""Headings of the numeric columns."""
_OF_THE_IMAGE = frozenset({"image_version", "image_supports", "image_audio"})
_LEAST = ("start", "KV tokens", "as", "why", "tok/s, 1 request")
"""Columns that a narrow terminal loses, the least important first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One accelerator."""

    plan: Plan
    image: str | None
    """Name of the image that this project builds for it; None for the usual one."""


def compare(question: Question, limits: Comparison, *, as_json: bool) -> ExitCode:
    """Print the comparison. Return 0 if an accelerator meets the limits, otherwise 2. Raises PlanningError."""
    if question.model is not None:
        refuse_absent(question.model)
    rows = rows_of(question, limits)
    chosen = cheapest([row.plan for row in rows], limits)
    if as_json:
        documents = [
            {
                **plan_json(row.plan, CommandWording(has_release=False)),
                "image": row.image,
                "enough": is_enough(row.plan, limits),
            }
            for row in rows
        ]
        print(
            json.dumps(
                {"model": rows[0].plan.model, "cheapest": chosen.accelerator if chosen else None, "rows": documents},
                indent=2,
                allow_nan=False,
            )
        )
    else:
        _table(rows, chosen, limits)
    return ExitCode.DONE if chosen else ExitCode.REFUSED


def rows_of(question: Question, limits: Comparison) -> list[Row]:
    """Return a row for each accelerator (or the selected one) and for a custom device, cheapest first and unpriced last."""
    asked = deployment_from(question)
    if limits.min_context is not None and asked.vllm.max_model_len is None:
        asked = replace(asked, vllm=replace(asked.vllm, max_model_len=limits.min_context))
    names = (
        [question.accelerator]
        if question.accelerator
        else [a.name for a in ACCELERATORS.values() if question.platform in {None, *a.platforms}]
    )
    rows = [_row(replace(asked, accelerator=name, device=None)) for name in names]
    if asked.device is not None:
        rows.append(Row(plan=plan(replace(asked, platform=None)), image=None))
    return sorted(rows, key=lambda one: (not one.plan.cost.is_known, one.plan.cost.usd_per_hour))


def _row(deployment: Deployment) -> Row:
    """Return the plan of a deployment, with an image of this project if only that is known to load its precision."""
    planned = plan(deployment)
    found = (remedy.changes for one in planned.findings if one.id == "FIT06" for remedy in one.remedies)
    image = next((changes for changes in found if "image_version" in changes and changes.keys() <= _OF_THE_IMAGE), None)
    if image is None:
        return Row(plan=planned, image=None)
    return Row(plan=plan(changed(deployment, image)), image=built_name(image["image_version"]))


def is_enough(one: Plan, limits: Comparison) -> bool:
    """Return whether the plan fits and meets every limit."""
    return (
        one.fits
        and (limits.min_context is None or one.memory.largest_max_model_len >= limits.min_context)
        and (limits.min_concurrency is None or one.memory.max_concurrency * one.replicas >= limits.min_concurrency)
        and (
            limits.max_usd_per_hour is None or (one.cost.is_known and one.cost.usd_per_hour <= limits.max_usd_per_hour)
        )
    )


def cheapest(plans: list[Plan], limits: Comparison) -> Plan | None:
    """Return the cheapest plan that meets the limits."""
    priced = (one for one in plans if one.cost.is_known and is_enough(one, limits))
    return min(priced, key=lambda one: one.cost.usd_per_hour, default=None)


def _table(rows: list[Row], chosen: Plan | None, limits: Comparison) -> None:
    from scripts.cli.tables import console, paragraph, table  # noqa: PLC0415 - only for the table

    plans = [row.plan for row in rows]
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
            f"{one.memory.kv_tokens * one.replicas:,}",
            f"{one.memory.max_concurrency * one.replicas:.1f}",
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
    for image in dict.fromkeys(row.image for row in rows if row.image):
        names = ", ".join(row.plan.accelerator for row in rows if row.image == image)
        paragraph(out, f"With the image {image} of this project (--image {image}): {names}.")
