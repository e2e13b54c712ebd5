"""Oracle results as Markdown and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from authors.oracle.exposure import Exposure
from authors.oracle.features import FeatureComparison
from authors.oracle.judge import FigureComparison
from authors.oracle.metric_shapes import ShapeComparison
from authors.oracle.rounds import PlantedOutcome, PointOutcome

SCHEMA_VERSION: Final = 2
_UNITS: Final = {"throughput": "tok/s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleReport:
    """Results of all checks."""

    date: str
    machine: str
    load: tuple[float, float]
    """System load, the mean number of runnable processes in the previous minute, at the start and at the end."""
    measured: "OracleMeasured | None"
    """None if the benchmark was not run."""
    exposure: Exposure | None
    """None if the exposure was not checked."""
    metrics: ShapeComparison | None
    """None if the metrics were not compared."""
    features: FeatureComparison | None
    """None if the features were not checked."""
    elapsed_s: float

    @property
    def faults(self) -> tuple[str, ...]:
        """All faults, as sentences."""
        found = self.measured.faults if self.measured is not None else ()
        others = (part for part in (self.exposure, self.metrics, self.features) if part is not None)
        return (*found, *(fault for part in others for fault in part.faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleMeasured:
    """Results of the benchmarks and the clients."""

    points: tuple[PointOutcome, ...]
    planted: PlantedOutcome
    smoke_checks: int
    """Smoke checks with the expected verdict."""
    client_faults: tuple[str, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """All faults, as sentences."""
        of_points = [fault for outcome in self.points for fault in outcome.faults]
        return (*self.client_faults, *of_points, *self.planted.faults)


def as_markdown(report: OracleReport) -> str:
    """Return the report as Markdown."""
    title = "The real vLLM agrees" if not report.faults else "The oracle FAILED"
    lines = [f"### {title}", ""]
    lines += [
        f"{report.date}, {report.machine}, load {report.load[0]:.1f} to {report.load[1]:.1f}, {report.elapsed_s / 60:.0f} minutes.",
        "",
    ]
    if report.measured is not None:
        lines += _of_benchmarks(report.measured)
    if report.exposure is not None:
        lines += ["", *_of_exposure(report.exposure), ""]
    if report.metrics is not None:
        lines += ["", *_of_metrics(report.metrics), ""]
    if report.features is not None:
        lines += [
            "",
            f"Features: {report.features.as_expected} checks had the expected result with random weights.",
            "",
        ]
    lines += [f"- FAULT: {fault}" for fault in report.faults]
    return "\n".join(lines)


def _of_benchmarks(measured: OracleMeasured) -> list[str]:
    lines = [f"Smoke: {measured.smoke_checks} checks had the expected verdict with random weights.", ""]
    lines += _table([row for outcome in measured.points for row in outcome.compared])
    lines += ["", "Behind the injected fault:", "", *_table(measured.planted.compared), ""]
    lines += [
        f"scripts.bench reported {measured.planted.noticed} of {measured.planted.runs} runs behind the fault as invalid.",
        "",
    ]
    for outcome in measured.points:
        point = outcome.point
        lines.append(
            f"- {point.name}: {len(outcome.pairs)} rounds of {point.requests} requests, {point.input_tokens} in, {point.output_tokens} out"
        )
        lines += [f"- {point.name}, excluded, {reason}" for reason in outcome.left_out]
    return lines


def _of_exposure(exposure: Exposure) -> list[str]:
    lines = ["| request | only an API key | as the stacks start it | with the key |", "| --- | --- | --- | --- |"]
    return [*lines, *(f"| {row.asked} | {row.open} | {row.closed} | {row.with_key} |" for row in exposure.rows)]


def _of_metrics(metrics: ShapeComparison) -> list[str]:
    return [
        f"Metrics: {len(metrics.compared)} names of the simulated server compared with vLLM's.",
        "",
        f"Names that only vLLM has: {', '.join(f'`{name}`' for name in metrics.missing) or 'none'}.",
    ]


def _table(rows: Sequence[FigureComparison]) -> list[str]:
    lines = [
        "| point | metric | ours | vllm bench serve | ours / server | verdict | theirs / server | relative to the server | verdict | plain | verdict |",
        "| --- | --- | ---: | ---: | --- | --- | ---: | --- | --- | --- | --- |",
    ]
    for row in rows:
        unit = _UNITS.get(row.figure, "ms")
        cells = [
            row.point,
            row.figure,
            f"{row.ours:.2f} {unit}",
            f"{row.theirs:.2f} {unit}",
            str(row.own) if row.own is not None else f"{row.ours_of_server:.3f}",
            _own_verdict(row),
        ]
        cells += [f"{row.theirs_of_server:.3f}", str(row.relative), _verdict(row.relative.verdict, row.relative.share)]
        cells += [str(row.raw), _verdict(row.raw.verdict, row.raw.share)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _own_verdict(row: FigureComparison) -> str:
    if row.own is None:
        return ""
    marked = f", {row.marked} runs marked, {row.unmarked} not" if row.marked else ""
    return _verdict(row.own.verdict, row.own.share) + marked


def _verdict(verdict: str, share: float) -> str:
    return f"{verdict} ({share:.0%})"


def as_json(report: OracleReport) -> dict[str, Any]:
    """Return the report as a JSON object, with every run."""
    return {"schema_version": SCHEMA_VERSION, "faults": list(report.faults), **asdict(report)}
