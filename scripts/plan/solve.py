"""Option `--solve`: the cheapest deployments for a workload as a table, as JSON, or as a settings file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.planning.question.recommendation import LEAST_CONTEXT
from gemma_serving.planning.question.types import rounded
from gemma_serving.planning.rules.findings import RULES
from gemma_serving.planning.settings.question import NO_TPU
from gemma_serving.planning.settings.workload import format_workload, parse_workload
from gemma_serving.planning.solve.candidates import checkpoints_of, longest_request, rentable_accelerators
from gemma_serving.planning.solve.search import ServiceLimits, Solution, SolutionSet, solve
from gemma_serving.planning.units import ROUGH, figure, format_duration
from gemma_serving.scripts.cli.command import print_progress, print_text
from gemma_serving.scripts.plan.plan_options import ComparisonOptions, QuestionOptions, Solving
from gemma_serving.scripts.plan.question import prices_of
from gemma_serving.scripts.plan.rows import Row, show_rows

HEADINGS: Final = ("model", "on", "$/h", "TTFT s", "TPOT ms", "tok/s", "$/M", "start", "bound by", "settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedQuestion:
    """The result of a search, with its question."""

    question: QuestionOptions
    limits: ServiceLimits
    answer: SolutionSet

    @property
    def shown(self) -> tuple[Solution, ...]:
        """The rows of the table (the best of each model, or every one of a single model)."""
        return self.answer.best_per_model() if self.question.model is None else self.answer.solutions


def solve_question(
    question: QuestionOptions, comparison: ComparisonOptions, solving: Solving, *, write: str | None, as_json: bool
) -> ExitCode:
    """Print the deployments that meet the limits, and write the chosen one. Raises PlanningError."""
    path = None
    if write is not None:
        from gemma_serving.scripts.plan.stack_text import new_file  # noqa: PLC0415 - only with --write

        path = new_file(write)  # reject an unusable name before the search
    found = search(question, comparison, solving)
    chosen = found.answer.chosen
    prices = question.prices
    if write is not None and path is not None and chosen is not None:
        from gemma_serving.scripts.plan.stack_text import StackFile, write_stack  # noqa: PLC0415 - only with --write

        write_stack(StackFile(name=write, solution=chosen, limits=found.limits, prices=prices))
        print_progress("plan", f"wrote {path.name}. Run `gemma plan {write}` to show its plan.")
    if as_json:
        written = path.name if path and chosen else None
        print_text(json.dumps(_json(found, written=written), indent=2, allow_nan=False))
    if chosen is None:
        print_progress("plan", nothing_is_enough(found.answer))
        return ExitCode.REFUSED
    if not as_json:
        _show(found, solving.rows)
    return ExitCode.DONE


def search(question: QuestionOptions, comparison: ComparisonOptions, solving: Solving) -> SolvedQuestion:
    """Return the result of the options. Raises PlanningError."""
    workload = parse_workload(question.workload or "")
    limits = ServiceLimits(
        max_ttft_s=solving.max_ttft_s,
        max_tpot_s=solving.max_tpot_s,
        max_usd_per_hour=comparison.max_usd_per_hour,
        min_context=comparison.min_context,
    )
    prices = prices_of(question)
    answer = solve(
        workload,
        limits,
        checkpoints=checkpoints_of(question.model),
        places=rentable_accelerators(solving.region, accelerator=question.accelerator, prices=prices),
        prices=prices,
    )
    return SolvedQuestion(question=question, limits=limits, answer=answer)


def nothing_is_enough(answer: SolutionSet) -> str:
    """Return one sentence on the closest deployment and the limit it misses."""
    if answer.nearest is None:
        return (
            "no deployment meets the limits: none of the requested checkpoints is known to load on these accelerators."
        )
    return f"no deployment meets the limits. Closest: {answer.nearest}."


def _show(found: SolvedQuestion, most: int) -> None:
    rows = [
        Row(
            cells=solution_cells(one),
            name=f"{one.served.words} on {one.subject.resolved.accelerator.name}",
            marks=found.answer.marks(one),
            image=one.image,
            style="bold green" if one is found.answer.chosen else "",
        )
        for one in found.shown
    ]
    show_rows(
        rows,
        most=most,
        title=f"Workload {found.question.workload}",
        headings=HEADINGS,
        least=("settings", "bound by", "TPOT ms", "start", "$/M", "tok/s"),
        notes=tuple(_notes(found, found.shown[:most])),
    )


def solution_cells(one: Solution) -> Mapping[str, str]:
    """Return the cells of a row by heading, in the order of HEADINGS."""
    result = one.answer
    return {
        "model": " ".join((one.served.words, *one.warnings)),
        "on": f"{one.subject.resolved.accelerator.name}{'' if one.is_recorded else '?'}",
        "$/h": f"{one.usd_per_hour:.2f}{'*' if one.is_price_assumed else ''}",
        "TTFT s": figure(result.ttft_s.typical, ROUGH),
        "TPOT ms": figure(result.tpot_s.typical * 1e3, ROUGH),
        "tok/s": figure(result.output_tok_per_s.typical, ROUGH),
        "$/M": figure(one.usd_per_million_tokens, ROUGH),
        "start": f"{one.subject.startup.ready_s / 60:.0f} min",
        "bound by": result.bound,
        "settings": _settings(one),
    }


def _notes(found: SolvedQuestion, printed: Sequence[Solution]) -> Iterator[str]:
    """Yield what the table does not say by itself, one paragraph each."""
    need = longest_request(parse_workload(found.question.workload or ""), found.limits.min_context)
    least = " (--min-context)" if need == LEAST_CONTEXT else ""
    context = "" if found.limits.min_context else f" and serve requests of {need:,} tokens{least}"
    quality = "The quality of a model is not planned; name one with --model, for example --model 26B."
    is_open = found.question.model is None
    yield (
        f"Chosen by price among the deployments that meet the limits{context}; of equal ones, those that public logs show running precede "
        f"the others.{f' {quality}' if is_open else ''}"
    )
    yield "TTFT and TPOT are typical values. `gemma plan NAME --costs` has the cost of a day."
    run = format_duration(NO_TPU.max_run_duration_s or 0)
    yield f"Google deletes a TPU slice after {run}, and Cloud Run stops an idle instance."
    for name in sorted({name for one in printed for name in one.warnings}):
        yield f"{name} warns of {RULES[name].what}. Such a deployment ranks last."
    if not all(one.is_recorded for one in printed):
        yield "? No public log shows a server with this checkpoint, in this precision, on this card. Its figures are planned from others."
    if any(one.is_price_assumed for one in printed):
        yield "* No price is known for a location of this row. The highest known price is used there."


def _settings(one: Solution) -> str:
    """Return the chosen settings in short form."""
    resolved = one.subject.resolved
    kv = "KV fp8, " if resolved.kv_bytes == 1 else ""
    text = ", text only" if not any((resolved.vllm.limit_mm_per_prompt or {"image": 1}).values()) else ""
    replicas = f" x DP {resolved.dp}" if resolved.dp > 1 else ""
    return f"TP {resolved.tp}{replicas}, {resolved.max_model_len:,} tokens, util. {resolved.utilization:g}, {kv}{resolved.weights_mode}{text}"


def _json(found: SolvedQuestion, *, written: str | None) -> dict[str, Any]:
    answer = found.answer
    limits = found.limits
    shown = found.shown
    return {
        "workload": format_workload(parse_workload(found.question.workload or "")),
        "limits": {
            "max_ttft_s": limits.max_ttft_s,
            "max_tpot_s": limits.max_tpot_s,
            "max_usd_per_hour": limits.max_usd_per_hour,
            "min_context": limits.min_context,
        },
        "rows": [{**_row(one), "marks": list(answer.marks(one)), "shown": one in shown} for one in answer.solutions],
        "nearest_miss": None if answer.solutions else nothing_is_enough(answer),
        "written": written,
    }


def _row(one: Solution) -> dict[str, Any]:
    resolved, result = one.subject.resolved, one.answer
    place = resolved.question.tpu.zones if resolved.is_tpu else (resolved.question.cloud_run.region,)
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
        "data_parallel_size": resolved.dp,
        "max_model_len": resolved.max_model_len,
        "max_num_seqs": resolved.max_num_seqs,
        "gpu_memory_utilization": resolved.utilization,
        "kv_cache_dtype": resolved.kv_dtype,
        "usd_per_hour": round(one.usd_per_hour, 4),
        "price_is_assumed": one.is_price_assumed,
        "is_recorded": one.is_recorded,
        "ends_after_s": resolved.question.tpu.max_run_duration_s if resolved.is_tpu else None,
        "warnings": list(one.warnings),
        "usd_per_million_tokens": round(one.usd_per_million_tokens, 4),
        **rounded(result, ttft_s=4, tpot_s=6, output_tok_per_s=2, requests_per_s=4),
        "start_s": round(one.subject.startup.ready_s),
        "bound": result.bound,
    }
