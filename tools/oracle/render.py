"""Show the outcome as Markdown and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tools.oracle.judge import FigureComparison
from tools.oracle.rounds import PlantedOutcome, PointOutcome

SCHEMA_VERSION: Final = 1
_UNITS: Final = {"throughput": "tok/s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleReport:
    """The outcome of all checks."""

    date: str
    machine: str
    load: tuple[float, float]
    """Mean number of processes that wanted a core in the minute before, at the start and at the end."""
    points: tuple[PointOutcome, ...]
    planted: PlantedOutcome
    smoke_checks: int
    """Smoke checks that came out as they must."""
    client_faults: tuple[str, ...]
    elapsed_s: float

    @property
    def faults(self) -> tuple[str, ...]:
        """Everything that must not be, as sentences."""
        of_points = [fault for outcome in self.points for fault in outcome.faults]
        return (*self.client_faults, *of_points, *self.planted.faults)


def as_markdown(report: OracleReport) -> str:
    """Return the report as Markdown."""
    title = "The benchmark agrees with vLLM's own" if not report.faults else "The oracle FAILED"
    lines = [f"### {title}", ""]
    lines += [
        f"{report.date}, {report.machine}, load {report.load[0]:.1f} to {report.load[1]:.1f}, {report.elapsed_s / 60:.0f} minutes.",
        "",
    ]
    lines += [f"Smoke: {report.smoke_checks} checks came out as they must with random weights.", ""]
    lines += _table([row for outcome in report.points for row in outcome.compared])
    lines += ["", "Behind the planted fault:", "", *_table(report.planted.compared), ""]
    lines += [
        f"scripts.bench called {report.planted.noticed} of {report.planted.runs} runs behind the fault invalid.",
        "",
    ]
    for outcome in report.points:
        point = outcome.point
        lines.append(
            f"- {point.name}: {len(outcome.pairs)} rounds of {point.requests} requests, {point.input_tokens} in, {point.output_tokens} out"
        )
        lines += [f"- {point.name}, left out, {reason}" for reason in outcome.left_out]
    lines += [f"- FAULT: {fault}" for fault in report.faults]
    return "\n".join(lines)


def _table(rows: Sequence[FigureComparison]) -> list[str]:
    lines = [
        "| point | figure | ours | vllm bench serve | ours / server | theirs / server | relative to the server | verdict | plain | verdict |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | --- | --- | --- |",
    ]
    for row in rows:
        unit = _UNITS.get(row.figure, "ms")
        cells = [
            row.point,
            row.figure,
            f"{row.ours:.2f} {unit}",
            f"{row.theirs:.2f} {unit}",
            f"{row.ours_of_server:.3f}",
        ]
        cells += [f"{row.theirs_of_server:.3f}", str(row.relative), _verdict(row.relative.verdict, row.relative.share)]
        cells += [str(row.raw), _verdict(row.raw.verdict, row.raw.share)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _verdict(verdict: str, share: float) -> str:
    return f"{verdict} ({share:.0%})"


def as_json(report: OracleReport) -> dict[str, Any]:
    """Return the report as a JSON object, with every run."""
    return {"schema_version": SCHEMA_VERSION, "faults": list(report.faults), **asdict(report)}
