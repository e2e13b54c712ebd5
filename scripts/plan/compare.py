"""One model on all accelerators: fit, capacity, speed and cost, and the cheapest that meets the limits."""

import json
from collections.abc import Mapping, Sequence

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.planning.data.images import built_name
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.model.catalog import refuse_absent
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.rules.alternatives import version_of
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.solve.plan_json import plan_json
from gemma_serving.scripts.cli.command import print_text
from gemma_serving.scripts.plan.plan_options import ComparisonOptions, QuestionOptions
from gemma_serving.scripts.plan.question import CommandWording, question_from
from gemma_serving.scripts.plan.rows import Row, plan_cells, show_rows

Compared = tuple[Plan, str | None]
"""The plan on one accelerator, and its image if this project builds it."""


def compare(
    options: QuestionOptions,
    limits: ComparisonOptions,
    *,
    as_json: bool,
    whole: bool = True,
    beside: Mapping[str, object] | None = None,
) -> ExitCode:
    """Print the comparison, as JSON with what stands beside it, or only what fits. Return 0 if one meets the limits, otherwise 2. Raises PlanningError."""
    if options.model is not None:
        refuse_absent(options.model)
    rows = _rows(options, limits)
    enough = [one for one, _ in rows if one.cost.is_known and not one.unknown and _is_enough(one, limits)]
    chosen = enough[0] if enough else None
    if as_json:
        wording = CommandWording(has_release=False)
        documents = [
            {**plan_json(one, wording), "image": image, "enough": _is_enough(one, limits)} for one, image in rows
        ]
        document = {"model": rows[0][0].model, "cheapest": chosen and chosen.accelerator, "rows": documents}
        print_text(json.dumps({**document, **(beside or {})}, indent=2, allow_nan=False))
    else:
        _show(rows if whole else [row for row in rows if row[0].fits] or rows, chosen, limits)
    return ExitCode.DONE if chosen else ExitCode.REFUSED


def _rows(options: QuestionOptions, limits: ComparisonOptions) -> list[Compared]:
    """Return a row for each accelerator and for a custom device, cheapest first, then unpriced ones, then those of unknown speed."""
    asked = question_from(options)
    if limits.min_context is not None and asked.settings.vllm.max_model_len is None:
        asked = with_changes(asked, {"vllm.max_model_len": limits.min_context})
    names = [a.name for a in ACCELERATORS.values() if options.platform in {None, *a.platforms}]
    if options.accelerator:
        names = [options.accelerator]
    rows = [_compared(asked.changed(accelerator=name, device=None)) for name in names]
    if asked.facts.device is not None:
        rows.append((plan(asked.changed(platform=None)), None))
    return sorted(rows, key=lambda row: (bool(row[0].unknown), not row[0].cost.is_known, row[0].cost.usd_per_hour))


def _compared(question: Question) -> Compared:
    """Return the plan, with an image of this project if only that is known to load the precision."""
    planned = plan(question)
    for finding in planned.findings:
        for remedy in finding.remedies if finding.id == "FIT06" else ():
            if "image" in remedy.changes and remedy.move is None:
                image = {"image": remedy.changes["image"]}
                return plan(with_changes(question, image)), built_name(version_of(image))
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


def _show(rows: Sequence[Compared], chosen: Plan | None, limits: ComparisonOptions) -> None:
    first = rows[0][0]
    show_rows(
        [
            Row(
                cells=plan_cells(one),
                name=f"{one.accelerator} on {one.platform}",
                marks=("cheapest that meets the limits",) if one is chosen else (),
                image=image,
                style="bold green" if one is chosen else "" if _is_enough(one, limits) else "dim",
            )
            for one, image in rows
        ],
        title=f"{first.model}, requests of {first.vllm.max_model_len or 0:,} tokens; tok/s of one request, and at full load",
        headings=("on", "as", "verdict", "concurrent", "tok/s", "tok/s, full", "$/h", "$/M tokens"),
        least=("as", "tok/s"),
        notes=() if chosen else ("No accelerator meets the limits. Relax a limit or choose a smaller model.",),
    )
