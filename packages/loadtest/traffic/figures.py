"""Metrics and notes about a load beyond fixed lengths: sessions, a ramp's windows, and repeated rows."""

from collections.abc import Sequence
from typing import Any, Final

from loadtest.measure import percentile
from loadtest.records import RequestRecord, WorkerResult
from loadtest.traffic.points import Point
from loadtest.traffic.prepare import PreparedTraffic
from loadtest.traffic.ramp import Ramp

WINDOWS: Final = 12
"""Windows that a ramp is divided into."""


def traffic_figures(
    records: Sequence[RequestRecord], results: Sequence[WorkerResult], prepared: PreparedTraffic
) -> dict[str, Any]:
    """Return the additional result fields of such a load: always `traffic`, and `sessions` and `ramp` if present."""
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
    if traffic.ramp is not None:
        figures["ramp"] = ramp_windows(records, traffic.ramp)
    return figures


def ramp_windows(records: Sequence[RequestRecord], ramp: Ramp) -> list[dict[str, Any]]:
    """Return the requests of each window of a ramp, by intended send time. Latencies in ms, null without a complete response."""
    end_s = max(ramp.over_s, max((record.intended_s for record in records), default=0.0))
    width_s = end_s / WINDOWS
    windows: list[dict[str, Any]] = []
    for number in range(WINDOWS):
        from_s, to_s = number * width_s, (number + 1) * width_s
        last = number == WINDOWS - 1
        group = [record for record in records if from_s <= record.intended_s and (last or record.intended_s < to_s)]
        done = [record for record in group if record.error is None]
        ttfts = sorted(record.ttft_s * 1000 for record in done)
        windows.append(
            {
                "from_s": round(from_s, 3),
                "to_s": round(to_s, 3),
                "level": round(ramp.level_at((from_s + to_s) / 2), 4),
                "sent": len(group),
                "completed": len(done),
                "failed": len(group) - len(done),
                "median_ttft_ms": round(percentile(ttfts, 50), 4) if ttfts else None,
                "p99_ttft_ms": round(percentile(ttfts, 99), 4) if ttfts else None,
                "output_tokens": sum(record.output_tokens for record in done),
            }
        )
    return windows


def traffic_notes(
    records: Sequence[RequestRecord], results: Sequence[WorkerResult], point: Point, prepared: PreparedTraffic
) -> list[str]:
    """Return notes about short responses, truncated sessions, and rows that were sent twice."""
    notes: list[str] = []
    short = sum(record.error is None and record.output_tokens < record.asked_tokens for record in records)
    if short:
        fixed = prepared.dataset is None and prepared.trace is None and prepared.traffic.output_lengths is None
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
