"""Metrics and notes about a load beyond fixed lengths: sessions and repeated rows."""

from collections.abc import Sequence
from typing import Any

from loadtest.records import RequestRecord, WorkerResult
from loadtest.traffic.points import Point
from loadtest.traffic.prepare import PreparedTraffic


def traffic_figures(results: Sequence[WorkerResult], prepared: PreparedTraffic) -> dict[str, Any]:
    """Return the additional result fields of such a load: always `traffic`, and `sessions` if present."""
    traffic = prepared.traffic
    figures: dict[str, Any] = {"traffic": traffic.as_json()}
    if prepared.image_tokens:
        figures["image_tokens"] = prepared.image_tokens
    if prepared.audio_tokens:
        figures["audio_tokens"] = prepared.audio_tokens
    if traffic.turns > 1:
        figures["sessions"] = {
            "begun": sum(result.sessions for result in results),
            "ended_at_max_model_len": sum(result.sessions_cut for result in results),
            "turns": traffic.turns,
            "think_time_s": traffic.think_time_s,
        }
    return figures


def traffic_notes(
    records: Sequence[RequestRecord], results: Sequence[WorkerResult], point: Point, prepared: PreparedTraffic
) -> list[str]:
    """Return notes about short responses, truncated sessions, and rows that were sent twice."""
    notes: list[str] = []
    short = sum(record.error is None and record.output_tokens < record.asked_tokens for record in records)
    if short:
        fixed = prepared.dataset is None and prepared.traffic.output_lengths is None
        notes.append(f"{short} responses are shorter than {f'{point.output_tokens} tokens' if fixed else 'requested'}")
    begun, cut = sum(result.sessions for result in results), sum(result.sessions_cut for result in results)
    if prepared.traffic.turns > 1 and point.request_rate is not None:
        notes.append(
            f"{point.request_rate:g} per second is the rate of new sessions; {begun} sessions sent {len(records)} requests"
        )
    if cut:
        notes.append(f"{cut} of {begun} sessions ended early because the conversation reached max-model-len")
    if prepared.dataset is not None:
        rows, sent = len(prepared.dataset.places), begun or len(records)
        if sent > rows:
            notes.append(
                f"the dataset has {rows} usable rows, so {sent - rows} requests repeat one and may hit the prefix cache"
            )
    return notes
