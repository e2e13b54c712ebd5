"""Build one line of results.jsonl: a point's figures and notes about them."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from scripts.bench.measure import (
    SCHEMA_VERSION,
    client_figures,
    error_figures,
    invalid_reasons,
    load_figures,
)
from scripts.bench.points import Point
from scripts.bench.records import WorkerResult
from scripts.bench.server import ServerInfo, Watch
from scripts.bench.settings import SweepSettings
from scripts.bench.vllm_command import vllm_command

CACHED_SHARE: Final = 0.05
"""A larger share of prefix-cache hits gets a note, because cached prompts are not computed."""
OTHERS_SHARE: Final = 0.05
"""If the server generated more tokens than received by this share, other clients use it too."""


def point_result(
    settings: SweepSettings, info: ServerInfo, point: Point, results: list[WorkerResult], watch: Watch
) -> dict[str, Any]:
    """Return one line of results.jsonl."""
    records = sorted((record for result in results for record in result.records), key=lambda record: record.index)
    figures = load_figures(records, settings.objective)
    client, server = client_figures(results), watch.figures()
    reasons = invalid_reasons(client, figures["median_ttft_ms"])
    notes = _notes(figures, server, point)
    if settings.roofline is not None:
        cached = server["prefix_cache_hits"] or 0.0
        impossible = settings.roofline.impossible(figures, cached_tokens=cached)
        reasons += [impossible] if impossible else []
    throughput = figures["output_throughput"]
    price = settings.usd_per_hour
    return {
        "schema_version": SCHEMA_VERSION,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "point": asdict(point) | {"key": point.key},
        "endpoint_type": "openai-chat" if settings.chat else "openai",
        "backend": "openai-chat" if settings.chat else "openai",
        "model_id": info.model,
        "tokenizer_id": info.model,
        "num_prompts": len(records),
        "request_rate": point.request_rate if point.request_rate is not None else "inf",
        "burstiness": 1.0 if settings.poisson else "inf",
        "max_concurrency": point.concurrency,
        "simulated": info.simulated or ("yes" if any(result.simulated for result in results) else None),
        **figures,
        **error_figures(records),
        "usd_per_million_output_tokens": round(price / 3600 / throughput * 1e6, 4)
        if price is not None and throughput > 0
        else None,
        "server": server,
        "client": client,
        "valid": not reasons,
        "invalid_reasons": reasons,
        "notes": notes,
        "vllm_command": vllm_command(
            settings.url, info.model, point, requests=len(records), chat=settings.chat, poisson=settings.poisson
        ),
    }


def _notes(figures: Mapping[str, Any], server: Mapping[str, Any], point: Point) -> list[str]:
    """Return notes about one point."""
    notes: list[str] = []
    asked = point.requested_input_tokens
    if asked is not None:
        notes.append(f"LEN01: input clamped from {asked} to {point.input_tokens} tokens")
    rate = server["prefix_cache_hit_rate"]
    if rate is not None and rate > CACHED_SHARE:
        notes.append(f"{rate:.0%} of the prompt tokens came from the prefix cache: they were not computed")
    lengths: list[int] = figures["output_lens"]
    short = sum(length < point.output_tokens for length in lengths)
    if short:
        notes.append(f"{short} answers are shorter than {point.output_tokens} tokens")
    wrong = sum(length != point.input_tokens for length in figures["input_lens"])
    if wrong:
        notes.append(f"{wrong} prompts are not {point.input_tokens} tokens long by the server's usage")
    counted = server["generation_tokens"]
    if counted is not None and counted > (1 + OTHERS_SHARE) * figures["total_output_tokens"] and not figures["failed"]:
        notes.append(
            f"the server generated {counted:.0f} tokens in this time, but {figures['total_output_tokens']} were received: other clients use it too"
        )
    return notes
