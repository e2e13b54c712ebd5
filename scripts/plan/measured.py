"""`--measured`: planned, booted and measured metrics, each with its band."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from contracts.errors import CommandRefusedError
from planning.cost.subject import examine
from planning.planner import plan_of
from planning.question.fields import number_limits
from planning.question.types import Band, Deployment, Plan
from planning.solve.plan_json import plan_json
from planning.solve.wording import Wording
from planning.speed.residuals import kv_band, residual
from scripts.cli.measured.schema import BenchPoint, DeploymentRecord, SmokeMeasurement
from scripts.cli.measured.store import measured_path, read_measured

_NUMBERS: Final = ("planned", "band", "booted", "measured", "difference")


Row = dict[str, Any]
"""One metric: planned with its band, booted, measured, difference, and whether it is within the band."""


def show_measured(stack: str, deployment: Deployment, plan: Plan, wording: Wording, *, as_json: bool) -> None:
    """Print the figures of the newest deployment that was measured. Raises CommandRefusedError if none was."""
    deployments = read_measured(stack).deployments
    if not deployments:
        raise CommandRefusedError(
            f"{measured_path(stack)} not found: stack {stack} has no measurements. Run `gemma smoke {stack}` or "
            f"`gemma bench {stack} --preset quick`."
        )
    record = deployments[-1]
    rows = [*_boot_rows(record), *_smoke_rows(record)]
    for point in record.bench:
        rows += _bench_rows(point)
    rate, source = _rate(record)
    priced = plan_of(examine(replace(deployment, measured_tok_per_s=rate or None)))
    if as_json:
        document = plan_json(priced, wording)
        document["measured"] = {
            "simulated": record.identity.simulated,
            "first_seen": record.first_seen,
            "rows": rows,
            "rate": {"tok_per_s": rate, "source": source} if rate else None,
        }
        print(json.dumps(document, indent=2, allow_nan=False))
        return
    from scripts.cli.tables import console, paragraph, table  # noqa: PLC0415 - rich takes longer to load than the plan

    out = console(sys.stdout)
    title = f"Stack {stack}: {record.model} on {record.accelerator}, measured since {record.first_seen}"
    shown = table(title, ("figure", *_NUMBERS, "within"), numbers=_NUMBERS, least=("band", "difference"))
    for row in rows:
        shown.add_row(row["figure"], *_cells(row))
    out.print(shown)
    if record.identity.simulated is not None:
        paragraph(out, "The server was SIMULATED. Results do not reflect real hardware.")
    if rate:
        paragraph(
            out,
            f"With the measured {rate:,.1f} tok/s ({source}): ${priced.cost.usd_per_million_tokens_saturated:.2f} per million output tokens; planned "
            f"${plan.cost.usd_per_million_tokens_saturated:.2f} at {plan.throughput.saturated_tok_per_s:,.0f} tok/s "
            f"for {plan.throughput.saturated_batch} concurrent requests.",
        )


def _rate(record: DeploymentRecord) -> tuple[float, str]:
    """Return the best rate of the benchmark, otherwise of the last burst of smoke, and its source; 0 without one."""
    limit = number_limits()["measured_tok_per_s"]
    points = [point for point in record.bench if limit.allows(point.output_tok_per_s)]
    if points:
        best = max(points, key=lambda point: point.output_tok_per_s)
        return best.output_tok_per_s, f"bench, {_load(best)}, {best.date}"
    for one in reversed(record.smoke):
        if one.burst_tok_per_s is not None and limit.allows(one.burst_tok_per_s):
            return one.burst_tok_per_s, f"smoke, burst of {one.burst_requests}, {one.date}"
    return 0.0, ""


def _boot_rows(record: DeploymentRecord) -> Iterator[Row]:
    planned = record.planned
    booted = next((one.booted for one in reversed(record.smoke) if one.booted), None)
    blocks, tokens = kv_band(planned.kv_blocks), kv_band(planned.kv_tokens)
    yield _row("KV blocks", blocks, booted=booted and booted.num_gpu_blocks, digits=0)
    yield _row("KV tokens (from blocks)", tokens, booted=booted and booted.kv_tokens, digits=0)
    block_size, share = booted and booted.block_size, booted and booted.gpu_memory_utilization
    yield _row("block size", _exact(record.settings.get("blockSize")), booted=block_size, digits=0)
    utilization = _exact(record.settings.get("gpuMemoryUtilization"))
    yield _row("GPU memory utilization", utilization, booted=share, digits=3)
    start = _row("start without image pull, s", None, booted=booted and booted.start_s, digits=0)
    start_s = planned.serving_start_s
    yield start | {"planned": start_s, "difference": _difference(start["booted"], start_s)}


def _exact(given: object) -> Band | None:
    return Band(low=given, typical=given, high=given) if isinstance(given, int | float) else None


def _smoke_rows(record: DeploymentRecord) -> Iterator[Row]:
    planned = record.planned
    last = record.smoke[-1] if record.smoke else SmokeMeasurement(date="")
    rate = planned.decode_tok_per_s
    yield _row("one stream, tok/s", rate, measured=last.decode_tok_per_s)
    yield _row("one stream, TTFT s", planned.ttft_s, measured=last.ttft_s, digits=3)
    tpot = Band(low=1000 / rate.high, typical=1000 / rate.typical, high=1000 / rate.low)
    yield _row("one stream, TPOT ms", tpot, measured=last.tpot_s and last.tpot_s * 1000, digits=2)
    name = f"burst of {last.burst_requests}, tok/s" if last.burst_requests else "burst, tok/s"
    yield _row(name, planned.burst_tok_per_s, measured=last.burst_tok_per_s)


def _bench_rows(point: BenchPoint) -> Iterator[Row]:
    load = _load(point)
    yield _row(f"{load}: tok/s", point.planned_tok_per_s, measured=point.output_tok_per_s)
    yield _row(f"{load}: TTFT s", point.planned_ttft_s, measured=point.ttft_s, digits=3)
    tpot_ms = point.planned_tpot_s.times(1000) if point.planned_tpot_s else None
    yield _row(f"{load}: TPOT ms", tpot_ms, measured=point.tpot_s and point.tpot_s * 1000, digits=2)


def _load(point: BenchPoint) -> str:
    clients = f"{point.users} users" if point.users is not None else f"{point.rate_per_s:g} requests/s"
    return f"{clients}, {point.input_tokens} in, {point.output_tokens} out"


def _row(
    figure: str, band: Band | None, *, booted: float | None = None, measured: float | None = None, digits: int = 1
) -> Row:
    shown, planned = booted if measured is None else measured, band.typical if band else None
    return {
        "figure": figure,
        "planned": planned,
        "low": band.low if band else None,
        "high": band.high if band else None,
        "booted": booted,
        "measured": measured,
        "digits": digits,
        "difference": _difference(shown, planned),
        "within": None if shown is None or band is None else residual(band, shown) == "within",
    }


def _difference(shown: float | None, planned: float | None) -> float | None:
    return None if shown is None or not planned else shown / planned - 1


def _cells(row: Row) -> Iterator[str]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:,.{row['digits']}f}"

    low, high = row["low"], row["high"]
    missing = row["booted"] is None and row["measured"] is None
    yield "not planned" if row["planned"] is None else number(row["planned"])
    yield "" if low is None or low == high else f"{number(low)} to {number(high)}"
    yield number(row["booted"])
    yield number(row["measured"])
    yield "" if row["difference"] is None else f"{row['difference']:+.0%}"
    yield "not measured" if missing else {True: "yes", False: "NO", None: ""}[row["within"]]
