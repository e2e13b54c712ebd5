"""Line of results.jsonl for a point: its metrics and notes about them."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from loadtest.measure import (
    SCHEMA_VERSION,
    client_figures,
    error_figures,
    failure_reason,
    load_figures,
)
from loadtest.proof import answer_findings, impossible_reason, little_reasons, server_reasons
from loadtest.records import RequestRecord, WorkerResult
from loadtest.served_model import ServerInfo, Watch
from loadtest.settings import SweepSettings
from loadtest.steady import saturation_figures, steady_figures, steady_notes, steady_window
from loadtest.traffic.points import Point
from loadtest.traffic.prepare import PreparedTraffic
from loadtest.ttft_uncertainty import bunch_findings, invalid_reasons, uncertainty_figures

CACHED_SHARE: Final = 0.05
"""Share of prefix-cache hits above which a point gets a note, because cached prompts are not computed."""
OTHERS_SHARE: Final = 0.05
"""Share of tokens generated beyond the received ones that indicates other clients."""


def point_result(
    settings: SweepSettings,
    info: ServerInfo,
    point: Point,
    results: list[WorkerResult],
    watch: Watch,
    *,
    prepared: PreparedTraffic,
    ignore_eos: bool = True,
) -> dict[str, Any]:
    """Return one line of results.jsonl."""
    records = sorted((record for result in results for record in result.records), key=lambda record: record.index)
    figures = load_figures(records, settings.objective)
    client, server = client_figures(results), watch.figures()
    failing = failure_reason(figures, settings.max_failed)
    reasons = ([failing] if failing else []) + invalid_reasons(client, figures)
    # Sessions that arrive at a rate send later turns long after the first, so the load is full only when whole sessions finish.
    unsteady = prepared.traffic.unsteady or (prepared.traffic.turns > 1 and point.mode == "open")
    window = None if unsteady else steady_window(records, point)
    saturation = None if unsteady else saturation_figures(records, window, point.request_rate)
    steady = steady_figures(records, window, settings.objective)
    disagreements, not_compared = server_reasons(records, figures, server, client["lag_mean_ms"])
    bunched, bunch_notes = bunch_findings(records, client)
    wrong, answer_notes = answer_findings(records, server, ignore_eos=ignore_eos)
    reasons += [*little_reasons(records, figures, point, window), *disagreements, *bunched, *wrong]
    notes = [
        *_notes(figures, server, point, prepared),
        *_traffic_notes(records, results, point, prepared),
        *_saturation_notes(saturation),
        *steady_notes(steady, unsteady=unsteady, complete=figures["completed"]),
        *not_compared,
        *bunch_notes,
        *answer_notes,
    ]
    impossible = impossible_reason(figures, settings.roofline, cached_tokens=server["prefix_cache_hits"] or 0.0)
    reasons += [impossible] if impossible else []
    return {
        **_identity(settings, info, point),
        "num_prompts": len(records),
        "simulated": info.simulated or ("yes" if any(result.simulated for result in results) else None),
        **figures,
        "steady": steady,
        "saturation": saturation,
        **error_figures(records),
        "usd_per_million_output_tokens": _price(settings.usd_per_hour, figures["output_throughput"]),
        "server": server,
        "client": client,
        "ttft_uncertainty": uncertainty_figures(records, figures, client, server),
        **_traffic_figures(results, prepared),
        "valid": not reasons,
        "invalid_reasons": reasons,
        "notes": notes,
    }


def _price(usd_per_hour: float | None, tok_per_s: float) -> float | None:
    return None if usd_per_hour is None or tok_per_s <= 0 else round(usd_per_hour / 3600 / tok_per_s * 1e6, 4)


def _identity(settings: SweepSettings, info: ServerInfo, point: Point) -> dict[str, Any]:
    """Return the fields that name the point, with the names of `vllm bench serve`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "point": asdict(point) | {"key": point.key},
        "endpoint_type": "openai-chat" if settings.chat else "openai",
        "backend": "openai-chat" if settings.chat else "openai",
        "model_id": info.model,
        "tokenizer_id": info.model,
        "request_rate": point.request_rate if point.request_rate is not None else "inf",
        "burstiness": 1.0 if settings.poisson else "inf",
        "max_concurrency": point.concurrency,
    }


def _saturation_notes(saturation: Mapping[str, Any] | None) -> list[str]:
    if saturation is None or saturation["over"] is False:
        return []
    if saturation["over"] is None:
        return [f"unknown whether the server kept up with the rate: {saturation['reason']}"]
    note = (
        f"over-saturated: requests in flight grew by {saturation['in_flight_growth_per_s']:.3g} per second and TTFT by"
        f" {saturation['ttft_growth_s_per_s']:.3g} s per second; the server answered {saturation['answered_per_s']:.4g} requests per second"
    )
    return [note]


def _notes(
    figures: Mapping[str, Any],
    server: Mapping[str, Any],
    point: Point,
    prepared: PreparedTraffic,
) -> list[str]:
    """Return notes about one point."""
    notes: list[str] = []
    asked = point.requested_input_tokens
    if asked is not None:
        notes.append(f"LEN01: input clamped from {asked} to {point.input_tokens} tokens")
    rate = server["prefix_cache_hit_rate"]
    if rate is not None and rate > CACHED_SHARE:
        why = ", as intended with shared prompts" if prepared.traffic.shares_prompts else ""
        notes.append(f"{rate:.0%} of the prompt tokens came from the prefix cache{why}, so they were not computed")
    wrong = 0 if prepared.varied else sum(length != point.input_tokens for length in figures["input_lens"])
    if wrong:
        notes.append(f"{wrong} prompts are not {point.input_tokens} tokens long by the server's usage")
    counted = server["generation_tokens"]
    if counted is not None and counted > (1 + OTHERS_SHARE) * figures["total_output_tokens"] and not figures["failed"]:
        notes.append(
            f"the server generated {counted:.0f} tokens in this time, but {figures['total_output_tokens']} were received, so other clients use it too"
        )
    return notes


def _traffic_figures(results: Sequence[WorkerResult], prepared: PreparedTraffic) -> dict[str, Any]:
    """Return the additional result fields of such a load: always `traffic`, and `sessions` if present."""
    traffic = prepared.traffic
    figures: dict[str, Any] = {"traffic": traffic.as_json()}
    if traffic.turns > 1:
        figures["sessions"] = {
            "begun": sum(result.sessions for result in results),
            "ended_at_max_model_len": sum(result.sessions_cut for result in results),
            "turns": traffic.turns,
            "think_time_s": traffic.think_time_s,
        }
    return figures


def _traffic_notes(
    records: Sequence[RequestRecord], results: Sequence[WorkerResult], point: Point, prepared: PreparedTraffic
) -> list[str]:
    """Return notes about short responses, and truncated sessions."""
    notes: list[str] = []
    short = sum(record.error is None and record.output_tokens < record.asked_tokens for record in records)
    if short:
        fixed = prepared.traffic.output_lengths is None
        notes.append(f"{short} responses are shorter than {f'{point.output_tokens} tokens' if fixed else 'requested'}")
    begun = sum(result.sessions for result in results)
    cut = sum(result.sessions_cut for result in results)
    if prepared.traffic.turns > 1 and point.request_rate is not None:
        notes.append(
            f"{point.request_rate:g} per second is the rate of new sessions; {begun} sessions sent {len(records)} requests"
        )
    if cut:
        notes.append(f"{cut} of {begun} sessions ended early because the conversation reached max-model-len")
    return notes
