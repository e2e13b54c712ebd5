"""Option `--solve`, the cheapest deployments of this project for a workload, as a table or JSON, and optionally as a stack's settings file."""

import json
import sys
from typing import Any

from contracts.exit_codes import ExitCode
from planning.errors import PlanningError
from planning.question.workload import Workload, format_workload, parse_workload
from planning.solve.candidates import checkpoints_of, rented
from planning.solve.search import ServiceLimits, Solution, SolutionSet, solve
from scripts.cli.command import say
from scripts.plan.question import Comparison, Question, prices_of
from scripts.plan.solve_options import Solving

_NUMBERS = ("$/h", "TTFT s", "TPOT ms", "tok/s", "$/M", "start")
"""Headings of the numeric columns."""
_HEADINGS = ("model and settings", "on", *_NUMBERS, "bound by")
_LEAST = ("bound by", "TPOT ms", "start", "$/M")
"""Columns that a narrow terminal loses, the least important first. The rows are sorted by price per hour."""


def solve_question(
    question: Question, comparison: Comparison, solving: Solving, *, write: str | None, as_json: bool
) -> ExitCode:
    """Print the deployments that meet the limits, and optionally write the cheapest as a stack's file. Return 2 if there is none. Raises PlanningError."""
    workload = parse_workload(question.workload or "")
    limits = ServiceLimits(
        max_ttft_s=solving.max_ttft_s,
        max_tpot_s=solving.max_tpot_s,
        max_usd_per_hour=comparison.max_usd_per_hour,
        min_context=comparison.min_context,
        conservative=solving.conservative,
    )
    if write is not None:
        from scripts.plan.stack_text import new_file  # noqa: PLC0415 - only with --write

        new_file(write)  # reject an unusable name before the search
    prices = prices_of(question)
    answer = solve(
        workload,
        limits,
        checkpoints=checkpoints_of(question.model),
        places=rented(solving.region, accelerator=question.accelerator, prices=prices),
        prices=prices,
    )
    written = _write(answer, limits, write, question) if write is not None and answer.cheapest else None
    if as_json:
        print(
            json.dumps(
                _json(answer, workload, limits, shown=_shown(answer, question), written=written),
                indent=2,
                allow_nan=False,
            )
        )
    elif answer.solutions:
        _table(answer, limits, question)
    if answer.solutions:
        return ExitCode.DONE
    say("plan", nothing_is_enough(answer))
    return ExitCode.REFUSED


def nothing_is_enough(answer: SolutionSet) -> str:
    """Return one sentence on the closest deployment and the limit it misses."""
    if answer.nearest is None:
        return (
            "no deployment meets the limits: none of the requested checkpoints is known to load on these accelerators."
        )
    return f"no deployment meets the limits. Closest: {answer.nearest}."


def _write(answer: SolutionSet, limits: ServiceLimits, name: str, question: Question) -> str:
    from scripts.plan.stack_text import write_stack  # noqa: PLC0415 - only with --write

    if answer.cheapest is None:
        raise PlanningError(nothing_is_enough(answer))
    path = write_stack(name, answer.cheapest, limits, prices=question.prices)
    say("plan", f"wrote {path.name}. Run `python -m scripts.plan --stack {name}` to show its plan.")
    return path.name


def _shown(answer: SolutionSet, question: Question) -> tuple[Solution, ...]:
    """Return the rows of the table (the best of each model, or all of a single model)."""
    return answer.best_per_model() if question.model is None else answer.solutions


def _table(answer: SolutionSet, limits: ServiceLimits, question: Question) -> None:
    from scripts.cli.tables import console, paragraph, table  # noqa: PLC0415 - only for the table

    end = (
        "the slow ends of their bands"
        if limits.conservative
        else "typical values; --conservative compares the slow ends of their bands"
    )
    shown = table(f"Workload {question.workload}", _HEADINGS, numbers=_NUMBERS, least=_LEAST)
    out = console(sys.stdout)
    for one in _shown(answer, question):
        result = one.answer
        shown.add_row(
            "\n  ".join(filter(None, (one.served.words, _settings(one), ", ".join(answer.marks(one))))),
            one.subject.resolved.accelerator.name,
            f"{one.usd_per_hour:.2f}",
            f"{limits.judged(result.ttft_s):,.2f}",
            f"{limits.judged(result.tpot_s) * 1e3:,.1f}",
            f"{result.output_tok_per_s.typical:,.0f}",
            f"{one.usd_per_million_tokens:.3f}",
            f"{one.subject.startup.ready_s / 60:.0f} min",
            result.bound,
        )
    out.print(shown)
    count = len(answer.solutions)
    more = f" {count} combinations meet the limits; --model shows all of a family." if question.model is None else ""
    paragraph(out, f"TTFT and TPOT are {end}. $/M is the price per 1M tokens, prompts and completions together.{more}")


def _settings(one: Solution) -> str:
    """Return the chosen settings in short form."""
    resolved = one.subject.resolved
    kv = "KV fp8, " if resolved.kv_bytes == 1 else ""
    image = f",\n  image {one.image}" if one.image else ""
    return f"TP {resolved.tp}, {resolved.max_model_len:,} tokens, util. {resolved.utilization:g}, {kv}{resolved.weights_mode}{image}"


def _json(
    answer: SolutionSet, workload: Workload, limits: ServiceLimits, *, shown: tuple[Solution, ...], written: str | None
) -> dict[str, Any]:
    return {
        "workload": format_workload(workload),
        "limits": {
            "max_ttft_s": limits.max_ttft_s,
            "max_tpot_s": limits.max_tpot_s,
            "max_usd_per_hour": limits.max_usd_per_hour,
            "min_context": limits.min_context,
        },
        "judged_by": limits.judged_by,
        "rows": [{**_row(one), "marks": list(answer.marks(one)), "shown": one in shown} for one in answer.solutions],
        "nearest_miss": None if answer.solutions else nothing_is_enough(answer),
        "written": written,
    }


def _row(one: Solution) -> dict[str, Any]:
    resolved, result = one.subject.resolved, one.answer
    place = resolved.deployment.tpu.zones if resolved.is_tpu else (resolved.deployment.cloud_run.region,)
    return {
        "model": resolved.model_id,
        "quantization": resolved.scheme.name,
        "image": one.image,
        "accelerator": resolved.accelerator.name,
        "platform": resolved.platform,
        "chips": resolved.accelerator.devices,
        "places": list(place),
        "vcpu": resolved.vcpu,
        "host_memory_gib": resolved.host_memory_gib,
        "weights_mode": resolved.weights_mode,
        "tensor_parallel_size": resolved.tp,
        "max_model_len": resolved.max_model_len,
        "max_num_seqs": resolved.max_num_seqs,
        "gpu_memory_utilization": resolved.utilization,
        "kv_cache_dtype": resolved.kv_dtype,
        "usd_per_hour": round(one.usd_per_hour, 4),
        "usd_per_million_tokens": round(one.usd_per_million_tokens, 4),
        "ttft_s": result.ttft_s.rounded(4),
        "tpot_s": result.tpot_s.rounded(6),
        "output_tok_per_s": result.output_tok_per_s.rounded(2),
        "requests_per_s": result.requests_per_s.rounded(4),
        "start_s": round(one.subject.startup.ready_s),
        "bound": result.bound,
    }
