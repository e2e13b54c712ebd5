"""The facts, the table and the CSV of a sweep's reports."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scripts.bench.charts import NOTHING, Result
from scripts.bench.measure import failed_share, has_too_many_failures
from scripts.bench.steady import steady_output
from scripts.client.events import as_list, as_mapping

CSV_FIELDS: Final = (
    "completed", "failed", "duration", "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
    "max_output_tokens_per_s", "max_concurrent_requests", "total_input_tokens", "total_output_tokens",
    *(f"{key}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for key in ("mean", "median", "std", "p90", "p99")),
    "usd_per_million_output_tokens", "valid", "simulated", "date",
)  # fmt: skip
STEADY_FIELDS: Final = ("requests", "output_throughput", "mean_in_flight", "median_ttft_ms", "mean_tpot_ms")
SERVER_FIELDS: Final = (
    "kv_cache_usage_max",
    "requests_running_max",
    "requests_waiting_max",
    "prefix_cache_hit_rate",
    "preemptions",
)
CLIENT_FIELDS: Final = ("workers", "cpu_share_max", "lag_p99_ms", "send_late_p99_ms")
LEGEND: Final = (
    "TTFT: time to first token. TPOT: time per output token after the first, by the server's own token count. ITL: time between events of a"
    " stream. E2E: until the last event of the answer. Steady: without the first wave and the last answers."
    " KV and queue: the most that was seen. Failed requests count in no latency."
    " Hollow marks and dashed cells are invalid points."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the table."""

    title: str
    text: Callable[[Result], str]
    alarming: Callable[[Result], bool] = lambda _result: False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Text around the table and the charts."""

    title: str
    subtitle: tuple[str, ...]
    headline: tuple[tuple[str, str], ...]
    notices: tuple[str, ...]
    notes: tuple[str, ...]
    legend: str
    vllm_command: str


def _number(field: str, form: str) -> Callable[[Result], str]:
    return lambda result: format(result[field], form) if result.get(field) is not None else NOTHING


def _of(part: str, field: str, form: str) -> Callable[[Result], str]:
    return lambda result: format(result[part][field], form) if result[part].get(field) is not None else NOTHING


def load_text(result: Result) -> str:
    """Return a point's load as text."""
    point = result["point"]
    return f"{point['level']:g}" if point["mode"] == "closed" else f"{point['level']:g}/s"


COLUMNS: Final = (
    Column(title="load", text=load_text),
    Column(title="in", text=lambda r: f"{r['point']['input_tokens']:,}"),
    Column(title="out", text=lambda r: f"{r['point']['output_tokens']:,}"),
    Column(title="done", text=_number("completed", ",")),
    Column(title="failed", text=_number("failed", ","), alarming=lambda r: r["failed"] > 0),
    Column(title="valid", text=lambda r: "yes" if r["valid"] else "NO", alarming=lambda r: not r["valid"]),
    Column(title="req/s", text=_number("request_throughput", ",.2f")),
    Column(title="goodput/s", text=_number("request_goodput", ",.2f")),
    Column(title="out tok/s", text=_number("output_throughput", ",.1f")),
    Column(
        title="steady tok/s", text=lambda r: f"{r['steady']['output_throughput']:,.1f}" if r.get("steady") else NOTHING
    ),
    Column(title="all tok/s", text=_number("total_token_throughput", ",.1f")),
    Column(title="TTFT p50 ms", text=_number("median_ttft_ms", ",.1f")),
    Column(title="p99", text=_number("p99_ttft_ms", ",.1f")),
    Column(title="TPOT p50 ms", text=_number("median_tpot_ms", ",.2f")),
    Column(title="ITL p99 ms", text=_number("p99_itl_ms", ",.2f")),
    Column(title="E2E p99 ms", text=_number("p99_e2el_ms", ",.0f")),
    Column(title="KV", text=_of("server", "kv_cache_usage_max", ".0%")),
    Column(title="queue", text=_of("server", "requests_waiting_max", ",.0f")),
)


def cell_text(column: Column, result: Result) -> str:
    """Return one cell."""
    return column.text(result)


def sweep_facts(run: Mapping[str, Any], results: Sequence[Result]) -> Facts:
    """Return the facts of a sweep from its run.json and its results."""
    server = as_mapping(run.get("server"))
    simulated = server.get("simulated") or next((r["simulated"] for r in results if r["simulated"]), None)
    done = [r for r in results if r["completed"]]
    best = max((r for r in done if r["valid"]), key=steady_output, default=None)
    price = run.get("usd_per_hour")
    headline = [("points", f"{len(results)}"), ("requests answered", f"{sum(r['completed'] for r in results):,}")]
    if best is not None:
        headline += [
            (
                f"highest output rate in tokens per second {'in the steady window ' if best.get('steady') else ''}(load {load_text(best)})",
                f"{steady_output(best):,.0f}",
            ),
            ("fastest median TTFT", f"{min(r['median_ttft_ms'] for r in done):,.1f} ms"),
        ]
        if best["usd_per_million_output_tokens"] is not None:
            headline.append(
                (
                    f"lowest USD per million output tokens at {price:g} USD per hour",
                    f"{best['usd_per_million_output_tokens']:,.3g}",
                )
            )
    found = as_mapping(run.get("found"))
    if isinstance(found.get("level"), int | float):
        headline.append((f"highest load in {found['unit']} that keeps the limits", f"{found['level']:g}"))
    headline.append(("requests failed", f"{sum(r['failed'] for r in results):,}"))
    notices = _failure_notices(run, results)
    if simulated:
        notices.append("Simulated server: these figures show the tool, not any hardware.")
    invalid = sum(not r["valid"] for r in results)
    if invalid:
        notices.append(
            f"{invalid} of {len(results)} points are invalid: the client was the limit, or the figures cannot be true."
        )
    subtitle = [str(run.get("url") or "")]
    if server.get("version"):
        subtitle.append(f"vLLM {server['version']}")
    length = server.get("max_model_len")
    if isinstance(length, int):
        subtitle.append(f"max-model-len {length:,}")
    subtitle += [f"seed {run.get('seed')}", str(results[-1]["date"]) if results else ""]
    return Facts(
        title=f"Benchmark of {run.get('model') or (results[0]['model_id'] if results else 'a server')}",
        subtitle=tuple(part for part in subtitle if part),
        headline=tuple(headline),
        notices=tuple(notices),
        notes=tuple(_notes(run, results)),
        legend=LEGEND,
        vllm_command=str(results[-1]["vllm_command"]) if results else "",
    )


def _failure_notices(run: Mapping[str, Any], results: Sequence[Result]) -> list[str]:
    """Return what the report says first: points whose requests failed, points that were not measured, old definitions."""
    notices: list[str] = []
    most = float(run.get("max_failed", 1.0))
    failing = [r for r in results if has_too_many_failures(r, most)]
    if failing:
        worst = max(failing, key=failed_share)
        notices.append(
            f"{len(failing)} of {len(results)} points failed: more than {most:.3g} of their requests had no complete answer,"
            f" {failed_share(worst):.1%} at load {load_text(worst)}. Their figures are not valid."
        )
    left_out = as_list(run.get("left_out"))
    if left_out:
        names = "; ".join(f"{as_mapping(row).get('key')}: {as_mapping(row).get('reason')}" for row in left_out)
        notices.append(f"{len(left_out)} points were not measured: {names}.")
    if any(r.get("schema_version") == 1 for r in results):
        notices.append(
            "Some points are from an older version of this tool: their duration, TPOT and E2E end with the last text, and failures do not count in them."
        )
    return notices


def _notes(run: Mapping[str, Any], results: Sequence[Result]) -> list[str]:
    notes = list(dict.fromkeys(str(note) for note in as_list(run.get("notes"))))
    found = as_mapping(run.get("found"))
    notes = [*([f"{found['sentence']}."] if found else []), *notes]
    for result in results:
        errors = ", ".join(
            f"{count} x {kind} ({result['error_examples'].get(kind, '')})"
            for kind, count in result["errors_by_kind"].items()
        )
        said = [*result["invalid_reasons"], *result["notes"], *([f"failed: {errors}"] if errors else [])]
        notes += [f"{result['point']['key']}: {text}" for text in said]
    return notes


def markdown_report(facts: Facts, results: Sequence[Result]) -> str:
    """Return the report as Markdown."""
    lines = [f"# {facts.title}", "", " · ".join(facts.subtitle), ""]
    for notice in facts.notices:
        lines += [f"> **{notice}**", ""]
    lines += [f"- {name}: **{value}**" for name, value in facts.headline]
    lines += ["", "| " + " | ".join(column.title for column in COLUMNS) + " |", "|" + " ---: |" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell_text(column, result) for column in COLUMNS) + " |" for result in results]
    lines += ["", facts.legend, ""]
    if facts.notes:
        lines += ["## Notes", "", *(f"- {note}" for note in facts.notes), ""]
    if facts.vllm_command:
        lines += ["## The same with vLLM's own benchmark", "", "```", facts.vllm_command, "```", ""]
    return "\n".join(lines)


def summary_csv(results: Sequence[Result]) -> str:
    """Return one CSV row per point; empty fields are unknown."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    point_fields = ("key", "mode", "level", "input_tokens", "output_tokens", "repeat", "seed")
    writer.writerow(
        [
            *point_fields,
            *CSV_FIELDS,
            *(f"steady_{name}" for name in STEADY_FIELDS),
            *SERVER_FIELDS,
            *CLIENT_FIELDS,
            "errors",
            "notes",
        ]
    )
    for result in results:
        errors = " ".join(f"{kind}={count}" for kind, count in result["errors_by_kind"].items())
        notes = "; ".join([*result["invalid_reasons"], *result["notes"]])
        values = [
            *(result["point"][name] for name in point_fields),
            *(result.get(name) for name in CSV_FIELDS),
            *(as_mapping(result.get("steady")).get(name) for name in STEADY_FIELDS),
            *(result["server"].get(name) for name in SERVER_FIELDS),
            *(result["client"].get(name) for name in CLIENT_FIELDS),
            errors,
            notes,
        ]
        writer.writerow(["" if value is None else value for value in values])
    return text.getvalue()
