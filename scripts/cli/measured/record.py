"""Convert a run of the smoke checks or the benchmark to entries of a stack's results file."""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contracts.outputs import StackOutputs
from loadtest.steady import judged, steady_output
from planning.errors import PlanningError
from planning.numbers import as_number
from planning.question.workload import Workload
from scripts.cli.measured.identity import deployed_identity, kept_settings
from scripts.cli.measured.planned import DeployedPlan
from scripts.cli.measured.schema import (
    SCHEMA_VERSION,
    BenchPoint,
    BootedFigures,
    DeploymentRecord,
    MeasuredFile,
    SmokeMeasurement,
)
from scripts.cli.measured.store import change_measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Data added by one run."""

    outputs: StackOutputs
    plan: DeployedPlan
    simulated: str | None
    smoke: tuple[SmokeMeasurement, ...] = ()
    bench: tuple[BenchPoint, ...] = ()


def now() -> str:
    """Return the time, RFC 3339 in UTC."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def add(stack: str, measured: Measured) -> Path:
    """Add a run to the stack's file, under the deployment of the same identity or a new one. Return the path. Raises NotKeptError."""
    identity = deployed_identity(measured.outputs, measured.simulated)

    def changed(file: MeasuredFile) -> MeasuredFile:
        last = file.deployments[-1] if file.deployments else None
        is_same = last is not None and last.identity == identity
        record = last if last is not None and is_same else _new(measured)
        record = replace(
            record,
            planned=measured.plan.figures,
            smoke=(*record.smoke, *measured.smoke),
            bench=(*record.bench, *measured.bench),
        )
        earlier = file.deployments[:-1] if is_same else file.deployments
        return MeasuredFile(schema_version=SCHEMA_VERSION, stack=stack, deployments=(*earlier, record))

    return change_measured(stack, changed)


def _new(measured: Measured) -> DeploymentRecord:
    outputs = measured.outputs
    return DeploymentRecord(
        identity=deployed_identity(outputs, measured.simulated),
        first_seen=now(),
        model=outputs.model,
        accelerator=outputs.plan.accelerator,
        platform=outputs.plan.platform,
        settings=kept_settings(outputs.vllm),
        planned=measured.plan.figures,
    )


def bench_points(rows: Iterable[Mapping[str, Any]], plan: DeployedPlan) -> tuple[BenchPoint, ...]:
    """Return the valid points with prompts of one length; the planner's workloads cover no others."""
    return tuple(
        _point(judged(row), plan)
        for row in rows
        if row["valid"] and row["completed"] and not row["point"].get("traffic")
    )


def _point(row: Mapping[str, Any], plan: DeployedPlan) -> BenchPoint:
    load = row["point"]
    closed = load["mode"] == "closed"
    users, rate = (int(load["level"]), None) if closed else (None, float(load["level"]))
    point = BenchPoint(
        date=row["date"],
        input_tokens=load["input_tokens"],
        output_tokens=load["output_tokens"],
        users=users,
        rate_per_s=rate,
        output_tok_per_s=steady_output(row),
        ttft_s=_seconds(row["median_ttft_ms"]),
        tpot_s=_seconds(row["median_tpot_ms"]),
    )
    try:
        answers = plan.answers(
            Workload(input_tokens=point.input_tokens, output_tokens=point.output_tokens, users=users, rate_per_s=rate)
        )
    except PlanningError:
        answers = None
    if answers is None:
        return point
    return replace(
        point,
        planned_tok_per_s=answers.output_tok_per_s,
        planned_ttft_s=answers.ttft_s,
        planned_tpot_s=answers.tpot_s,
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def smoke_measurement(
    values: Mapping[str, Mapping[str, object]], plan: DeployedPlan, date: str
) -> SmokeMeasurement | None:
    """Return the smoke checks' measurements, given each check's values by name. None if nothing was measured."""
    single, burst = values.get("single stream", {}), values.get("burst", {})
    booted = _booted(values.get("options in effect", {}), plan, as_number(values.get("ready", {}).get("start_s")))
    rate = as_number(single.get("decode_tok_per_s"))
    requests = as_number(burst.get("requests"))
    made = SmokeMeasurement(
        date=date,
        ttft_s=as_number(single.get("ttft_s")),
        tpot_s=1 / rate if rate else None,
        decode_tok_per_s=rate,
        burst_tok_per_s=as_number(burst.get("burst_tok_per_s")),
        burst_requests=None if requests is None else int(requests),
        booted=booted,
    )
    is_empty = rate is None and made.burst_tok_per_s is None and booted is None
    return None if is_empty else made


def _booted(values: Mapping[str, object], plan: DeployedPlan, start_s: float | None) -> BootedFigures | None:
    blocks, block_size = as_number(values.get("num_gpu_blocks")), as_number(values.get("block_size"))
    if blocks is None and start_s is None:
        return None
    figures = plan.figures
    return BootedFigures(
        num_gpu_blocks=None if blocks is None else int(blocks),
        block_size=None if block_size is None else int(block_size),
        gpu_memory_utilization=as_number(values.get("gpu_memory_utilization")),
        kv_tokens=round(figures.kv_tokens * blocks / figures.kv_blocks) if blocks and figures.kv_blocks else None,
        start_s=start_s,
    )
