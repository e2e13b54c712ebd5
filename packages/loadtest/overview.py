"""Overview of many sweeps: the best load of each, in one table per workload.

The best load of a sweep is its report's: the highest valid load within the limits of `--slo`, or the load of the highest output rate if the
sweep has no limits. Sweeps of different workloads are never in one table.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from loadtest.client.json_values import as_mapping
from loadtest.errors import SweepError
from loadtest.loads import best_of, loads_of, share_of
from loadtest.measure import load_text
from loadtest.store import read_results, read_run

UNKNOWN: Final = "unknown"
_Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """The best load of one sweep with one workload. A figure is None if it is unknown, or if no load is within the limits."""

    folder: str
    model: str
    machine: str
    stack: str
    load: str
    """The load with its unit; empty if no load is within the limits."""
    is_highest: bool
    """True if no higher load was measured, so the server may reach more."""
    output_throughput: float | None
    mean_ttft_ms: float | None
    p95_ttft_ms: float | None
    mean_tpot_ms: float | None
    usd_per_million_output_tokens: float | None
    valid: bool
    """False if no load of the sweep is valid."""
    invalid_loads: int
    loads: int
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTable:
    """Sweeps that measured the same workload."""

    workload: str
    has_limits: bool
    rows: tuple[SweepRow, ...]


def overview_of(folders: Sequence[Path]) -> list[WorkloadTable]:
    """Return the tables of these folders, whose rows do not compare with rows of other tables. Raises SweepError if one has no results or is named twice."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise SweepError("A folder is named twice. Pass each folder once.")
    tables: dict[tuple[str, bool], list[SweepRow]] = {}
    for folder in folders:
        run, results = read_run(folder), read_results(folder)
        if not results:
            raise SweepError(f"{folder} has no complete point yet. Run or resume the sweep first.")
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for result in results:
            groups.setdefault(_workload(run, result), []).append(result)
        for workload, group in groups.items():
            tables.setdefault((workload, bool(run.get("slo"))), []).append(_row(folder, run, group))
    for rows in tables.values():  # valid ones first, the highest throughput first
        rows.sort(key=lambda row: (not row.valid, -(row.output_throughput or 0.0)))
    made = [
        WorkloadTable(workload=workload, has_limits=limits, rows=tuple(rows))
        for (workload, limits), rows in tables.items()
    ]
    return sorted(made, key=lambda table: -len(table.rows))


def _workload(run: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return everything that two sweeps must share so their figures compare, as text."""
    point = result["point"]
    kind = "requests in flight" if point["mode"] == "closed" else "requests per second"
    parts = [f"{point['input_tokens']:,} tokens in, {point['output_tokens']:,} out", kind]
    parts.append("even arrivals" if point["mode"] == "open" and run.get("poisson") is False else "")
    parts.append(str(run.get("endpoint") or ""))
    parts.append(_limits_text(run))
    parts += [
        f"{name} {_text(value)}"
        for name, value in as_mapping(run.get("traffic")).items()
        if value and (name, value) != ("turns", 1)
    ]
    parts += [f"with {name} {_text(value)}" for name, value in sorted(as_mapping(run.get("extra_body")).items())]
    return ", ".join(part for part in parts if part)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _limits_text(run: Mapping[str, Any]) -> str:
    limits = [
        f"{name.removesuffix('_s')} {_text(value)} s"
        for name, value in as_mapping(run.get("slo")).items()
        if value is not None
    ]
    return f"limits {' and '.join(limits)} for {100 * share_of(run):g}% of the requests" if limits else ""


def _row(folder: Path, run: Mapping[str, Any], results: _Results) -> SweepRow:
    loads = loads_of(run, results)
    valid = [load for load in loads if load.is_valid]
    best = best_of(
        run, valid or [replace(load, is_valid=any(result["completed"] for result in load.results)) for load in loads]
    )
    group = best.results if best is not None else ()
    return SweepRow(
        folder=str(folder),
        model=str(run.get("model") or results[0]["model_id"] or UNKNOWN),
        machine=str(as_mapping(run.get("roofline")).get("accelerator") or UNKNOWN),
        stack=str(run.get("stack") or ""),
        load=load_text(group[0]) if group else "",
        is_highest=best is not None and best.level == loads[-1].level,
        output_throughput=best.output_tok_per_s if best is not None else None,
        mean_ttft_ms=_mean(group, "mean_ttft_ms"),
        p95_ttft_ms=_mean(group, "p95_ttft_ms"),
        mean_tpot_ms=_mean(group, "mean_tpot_ms"),
        usd_per_million_output_tokens=_mean(group, "usd_per_million_output_tokens"),
        valid=bool(valid),
        invalid_loads=len(loads) - len(valid),
        loads=len(loads),
        simulated=any(bool(result["simulated"]) for result in results),
    )


def _mean(group: _Results, field: str) -> float | None:
    """Return the mean of a metric over the repeats; None if one of them lacks it."""
    values = [float(result[field]) for result in group if result.get(field) is not None]
    return statistics.fmean(values) if values and len(values) == len(group) else None
