"""Text around the table and the charts of a report: problems first, then the metrics of the whole sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.client.json_values import as_list, as_mapping
from loadtest.measure import failed_share, failed_text, has_too_many_failures, load_text
from loadtest.reports.chart_model import Result
from loadtest.reports.notes import GroupedNote, failed_notes, invalid_notes, invalid_points, point_notes
from loadtest.steady import steady_output


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A sentence above all metrics, with its reasons."""

    text: str
    reasons: tuple[GroupedNote, ...] = ()
    alarming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A metric of the whole sweep."""

    name: str
    value: str
    terms: tuple[str, ...] = ()
    alarming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Text around the table and the charts."""

    title: str
    subtitle: tuple[str, ...]
    tiles: tuple[Tile, ...]
    notices: tuple[Notice, ...]
    failures: tuple[GroupedNote, ...]
    notes: tuple[str, ...]
    """Notes about the whole sweep."""
    point_notes: tuple[GroupedNote, ...]
    vllm_command: str


def sweep_facts(run: Mapping[str, Any], results: Sequence[Result]) -> Facts:
    """Return the facts of a sweep from its run.json and its results."""
    server = as_mapping(run.get("server"))
    subtitle = [str(run.get("url") or "")]
    if server.get("version"):
        subtitle.append(f"vLLM {server['version']}")
    length = server.get("max_model_len")
    if isinstance(length, int):
        subtitle.append(f"max-model-len {length:,}")
    subtitle += [str(results[-1]["point"].get("traffic") or "")] if results else []
    subtitle += [f"seed {run.get('seed')}", str(results[-1]["date"]) if results else ""]
    return Facts(
        title=f"Benchmark of {run.get('model') or (results[0]['model_id'] if results else 'a server')}",
        subtitle=tuple(part for part in subtitle if part),
        tiles=tuple(_tiles(run, results)),
        notices=tuple(_notices(run, results)),
        failures=tuple(failed_notes(results)),
        notes=tuple(_sweep_notes(run)),
        point_notes=tuple(point_notes(results)),
        vllm_command=str(results[-1]["vllm_command"]) if results else "",
    )


def _most_failed(run: Mapping[str, Any]) -> float:
    return float(run.get("max_failed", 1.0))


def _notices(run: Mapping[str, Any], results: Sequence[Result]) -> list[Notice]:
    """Return the notices of the report: invalid points, a simulated server, skipped points, old definitions."""
    notices: list[Notice] = []
    most = _most_failed(run)
    invalid = invalid_points(results, most)
    if invalid:
        which = "NO point is valid" if len(invalid) == len(results) else f"{len(invalid)} of {len(results)} points"
        notices.append(
            Notice(
                text=f"NOT VALID: {which}. Do not use their metrics.",
                reasons=tuple(invalid_notes(results, most)),
                alarming=True,
            )
        )
    if as_mapping(run.get("server")).get("simulated") or any(result["simulated"] for result in results):
        notices.append(Notice(text="Simulated server. Results do not reflect real hardware."))
    left_out = as_list(run.get("left_out"))
    if left_out:
        names = "; ".join(f"{as_mapping(row).get('key')}: {as_mapping(row).get('reason')}" for row in left_out)
        notices.append(Notice(text=f"{len(left_out)} points were not measured: {names}."))
    if any(r.get("schema_version") == 1 for r in results):
        notices.append(
            Notice(
                text="Some points are from an older version of this tool: their duration, TPOT and E2E end with the last text, and failures"
                " are not included in them."
            )
        )
    return notices


def _tiles(run: Mapping[str, Any], results: Sequence[Result]) -> list[Tile]:
    failed, done = (sum(result[name] for result in results) for name in ("failed", "completed"))
    most = _most_failed(run)
    worst = max(results, key=failed_share, default=None)
    worst_said = f", at most {failed_text(failed_share(worst))} of a point" if failed and worst is not None else ""
    tiles = [
        Tile(
            name=f"of the requests failed: {failed:,} of {failed + done:,}{worst_said}",
            value=failed_text(failed / max(1, failed + done)),
            terms=("failed",),
            alarming=any(has_too_many_failures(result, most) for result in results),
        ),
        Tile(
            name="points are valid",
            value=f"{len(results) - len(invalid_points(results, most))} of {len(results)}",
            terms=("valid",),
            alarming=bool(invalid_points(results, most)),
        ),
    ]
    bad = {result["point"]["key"] for result in invalid_points(results, most)}
    usable = [result for result in results if result["completed"] and result["point"]["key"] not in bad]
    best = max(usable, key=steady_output, default=None)
    if best is not None:
        tiles += _best_tiles(run, usable, best)
    found = as_mapping(run.get("found"))
    if isinstance(found.get("level"), int | float):
        tiles.append(
            Tile(
                name="highest load that meets the limits",
                value=f"{found['level']:g} {found['unit']}",
                terms=("kept",),
                alarming=not found["valid"],
            )
        )
    return tiles


def _best_tiles(run: Mapping[str, Any], usable: Sequence[Result], best: Result) -> list[Tile]:
    """Return the tiles of the best valid point."""
    where = "in the steady window " if best.get("steady") else ""
    tiles = [
        Tile(
            name=f"highest output rate {where}(load {load_text(best)})",
            value=f"{steady_output(best):,.0f} tok/s",
            terms=("throughput", "steady"),
        ),
        Tile(
            name="fastest median TTFT",
            value=f"{min(result['median_ttft_ms'] for result in usable):,.1f} ms",
            terms=("ttft",),
        ),
    ]
    cost, price = best["usd_per_million_output_tokens"], run.get("usd_per_hour")
    if cost is not None and price is not None:
        tiles.append(
            Tile(
                name=f"lowest price of a million output tokens at {price:g} USD per hour",
                value=f"{cost:,.3g} USD",
                terms=("cost",),
            )
        )
    return tiles


def _sweep_notes(run: Mapping[str, Any]) -> list[str]:
    found = as_mapping(run.get("found"))
    return [
        *([f"{found['sentence']}."] if found else []),
        *dict.fromkeys(str(note) for note in as_list(run.get("notes"))),
    ]
