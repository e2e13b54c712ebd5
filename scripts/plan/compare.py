"""One model on all accelerators: fit, capacity, speed and cost, and the cheapest that meets the limits."""

import dataclasses
import json
import sys

from msgspec.structs import replace as replace_struct

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.planning.data.images import built_name, image_words
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.model.catalog import refuse_absent
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.rules.alternatives import version_of
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.solve.plan_json import plan_json
from gemma_serving.scripts.cli.command import print_text
from gemma_serving.scripts.plan.plan_options import ComparisonOptions, Question
from gemma_serving.scripts.plan.question import CommandWording, deployment_from

_NUMBERS = ("concurrent", "tok/s, 1 request", "tok/s, full", "$/h", "$/M tokens")
"""Headings of the numeric columns."""
_LEAST = ("as", "why", "tok/s, 1 request")
"""Columns that a narrow terminal loses, the least important first."""


Row = tuple[Plan, str | None]
"""The plan on one accelerator, and its image if this project builds it."""


def compare(question: Question, limits: ComparisonOptions, *, as_json: bool) -> ExitCode:
    """Print the comparison. Return 0 if an accelerator meets the limits, otherwise 2. Raises PlanningError."""
    if question.model is not None:
        refuse_absent(question.model)
    rows = _rows(question, limits)
    enough = [one for one, _ in rows if one.cost.is_known and not one.unknown and _is_enough(one, limits)]
    chosen = enough[0] if enough else None
    if as_json:
        wording = CommandWording(has_release=False)
        documents = [
            {**plan_json(one, wording), "image": image, "enough": _is_enough(one, limits)} for one, image in rows
        ]
        document = {"model": rows[0][0].model, "cheapest": chosen and chosen.accelerator, "rows": documents}
        print_text(json.dumps(document, indent=2, allow_nan=False))
    else:
        _table(rows, chosen, limits)
    return ExitCode.DONE if chosen else ExitCode.REFUSED


def _rows(question: Question, limits: ComparisonOptions) -> list[Row]:
    """Return a row for each accelerator and for a custom device, cheapest first, then unpriced ones, then those of unknown speed."""
    asked = deployment_from(question)
    if limits.min_context is not None and asked.vllm.max_model_len is None:
        asked = replace_struct(asked, vllm=dataclasses.replace(asked.vllm, max_model_len=limits.min_context))
    names = [a.name for a in ACCELERATORS.values() if question.platform in {None, *a.platforms}]
    if question.accelerator:
        names = [question.accelerator]
    rows = [_row(replace_struct(asked, accelerator=name, device=None)) for name in names]
    if asked.device is not None:
        rows.append((plan(replace_struct(asked, platform=None)), None))
    return sorted(rows, key=lambda row: (bool(row[0].unknown), not row[0].cost.is_known, row[0].cost.usd_per_hour))


def _row(deployment: Deployment) -> Row:
    """Return the plan, with an image of this project if only that is known to load the precision."""
    planned = plan(deployment)
    for finding in planned.findings:
        for remedy in finding.remedies if finding.id == "FIT06" else ():
            if "image" in remedy.changes and remedy.move is None:
                image = {"image": remedy.changes["image"]}
                return plan(with_changes(deployment, image)), built_name(version_of(image))
    return planned, None


def _is_enough(one: Plan, limits: ComparisonOptions) -> bool:
    memory = one.memory
    usd = one.cost.usd_per_hour if one.cost.is_known else float("inf")
    return (
        one.fits
        and memory.largest_max_model_len >= (limits.min_context or 0)
        and memory.max_concurrency * one.replicas >= (limits.min_concurrency or 0)
        and usd <= (limits.max_usd_per_hour or float("inf"))
    )


def _rates(one: Plan) -> tuple[str, str, str, str]:
    """Return speed and price as the table's last columns: "unknown" for a speed that is not known, a dash for a price."""
    speed, cost = one.known_throughput, one.cost
    per_million = cost.usd_per_million_tokens_saturated if cost.is_known else None
    return (
        "unknown" if speed is None else f"{speed.decode_tok_per_s:.0f}",
        "unknown" if speed is None else f"{speed.saturated_tok_per_s:,.0f}",
        f"{cost.usd_per_hour:.2f}" if cost.is_known else "-",
        "-" if per_million is None else f"{per_million:.2f}",
    )


def _table(rows: list[Row], chosen: Plan | None, limits: ComparisonOptions) -> None:
    from gemma_serving.scripts.cli.tables import FittedTable, console, paragraph  # noqa: PLC0415 - only for the table

    first = rows[0][0]
    title = f"{first.model}, requests of {first.vllm.max_model_len or 0:,} tokens"
    words, out = ("accelerator", "as", "verdict", "why"), console(sys.stdout)
    shown = FittedTable(title, (*words, *_NUMBERS), numbers=_NUMBERS, least=_LEAST)
    for one, _ in rows:
        shown.add_row(
            f"{one.accelerator}{' *' if one is chosen else ''}",
            one.quantization,
            "may fail" if one.fits and one.margin else one.verdict,
            ", ".join(f.id for f in one.stopping),
            f"{one.memory.max_concurrency * one.replicas:.1f}",
            *_rates(one),
            style="bold green" if one is chosen else "" if _is_enough(one, limits) else "dim",
        )
    out.print(shown)
    text = "No accelerator meets the limits. Relax a limit or choose a smaller model."
    if chosen:
        place, usd = f"{chosen.accelerator} on {chosen.platform}", chosen.cost.usd_per_hour
        text = f"* cheapest that meets the limits: {place}, ${usd:.2f}/h"
    paragraph(out, text)
    for image in dict.fromkeys(image for _, image in rows if image):
        names = ", ".join(one.accelerator for one, built in rows if built == image)
        paragraph(out, f"With the image {image_words(image)} of this project (--image {image}): {names}.")
