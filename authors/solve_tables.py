"""Tables of docs/planning-workloads.md that ask the search: the answer to its question, and the three goals."""

from dataclasses import replace
from typing import Final

from planning.errors import PlanningError
from planning.question.workload import Workload, parse_workload
from planning.solve.candidates import checkpoints_of, rented
from planning.solve.search import Goal, ServiceLimits, solve

_EXAMPLE: Final = parse_workload("in=4000,out=500,users=32")
_EXAMPLE_LIMITS: Final = ServiceLimits(max_ttft_s=1, max_tpot_s=0.05, max_usd_per_hour=6)
"""The question of docs/planning-workloads.md, "Search for a workload"."""
_GOALS: Final[tuple[tuple[str, Goal, Workload], ...]] = (
    ("lowest price", "cost", _EXAMPLE),
    ("`--latency-first`", "latency", _EXAMPLE),
    ("`--throughput-first`, full server", "throughput", replace(_EXAMPLE, users=None)),
)
"""The questions of "Latency or throughput" in the same page."""


def solve_table() -> str:
    """Return the answer to the question of docs/planning-workloads.md in Markdown: the cheapest of each family, and the best by each criterion."""
    answer = solve(_EXAMPLE, _EXAMPLE_LIMITS, checkpoints=checkpoints_of(None), places=rented(()))
    head = "| model | on | TP | length | weights | USD/h | TTFT s | TPOT ms | tok/s | USD/M tokens | bound by | best |"
    rows = [
        f"| `{one.served.words}` | {one.subject.resolved.accelerator.name} | {one.subject.resolved.tp} | "
        f"{one.subject.resolved.max_model_len:,} | {one.subject.resolved.weights_mode} | {one.usd_per_hour:.2f} | "
        f"{one.answer.ttft_s.typical:.2f} | {one.answer.tpot_s.typical * 1e3:.1f} | "
        f"{one.answer.output_tok_per_s.typical:,.0f} | {one.usd_per_million_tokens:.3f} | {one.answer.bound} | "
        f"{', '.join(answer.marks(one)) or '-'} |"
        for one in answer.best_per_model()
    ]
    return "\n".join((head, "| --- " * 12 + "|", *rows)) + "\n"


def goals_table() -> str:
    """Return what 26B-A4B is served on by each goal in Markdown, with the batch and the rate per chip that explain it."""
    head = "| goal | model | on | TP | requests at once | TTFT s | TPOT ms | tok/s | tok/s per chip | USD/h | USD/M tokens |"
    rows: list[str] = []
    for name, goal, workload in _GOALS:
        found = solve(workload, ServiceLimits(), goal=goal, checkpoints=checkpoints_of("26B"), places=rented(())).chosen
        if found is None:
            raise PlanningError(f"No deployment of 26B-A4B serves the workload of {name}.")
        resolved, answer = found.subject.resolved, found.answer
        rate = answer.output_tok_per_s.typical
        rows.append(
            f"| {name} | `{found.served.words}` | {resolved.accelerator.name} | {resolved.tp} | {answer.running_requests.typical:.0f} | "
            f"{answer.ttft_s.typical:.2f} | {answer.tpot_s.typical * 1e3:.1f} | {rate:,.0f} | "
            f"{rate / resolved.accelerator.devices:,.0f} | {found.usd_per_hour:.2f} | {found.usd_per_million_tokens:.3f} |"
        )
    return "\n".join((head, "| --- " * 11 + "|", *rows)) + "\n"
