"""Read the server's model, limits and metrics."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from loadtest.client.events import served_models
from loadtest.client.json_values import as_mapping
from loadtest.client.metrics import (
    CACHE_CONFIG,
    GAPS_SUM,
    GENERATION_TOKENS,
    KV_USAGE,
    PREEMPTIONS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    PROMPT_TOKENS,
    RUNNING,
    TTFT_COUNT,
    TTFT_SUM,
    WAITING,
    Scrape,
)
from loadtest.client.openai import OpenAIClient, ServerAnswer, ServerError
from loadtest.endpoint import API_KEY_VARIABLE
from loadtest.errors import SweepError

now_s: Final = time.perf_counter
SAMPLE_PERIOD_S: Final = 1.0
FIRST_SAMPLE_S: Final = 0.1
"""Intervals of the first samples, shorter because a point may last less than a second."""
CALL_LIMIT_S: Final = 30.0
COUNTERS: Final = {
    "prompt_tokens": PROMPT_TOKENS,
    "generation_tokens": GENERATION_TOKENS,
    "preemptions": PREEMPTIONS,
    "prefix_cache_queries": PREFIX_QUERIES,
    "prefix_cache_hits": PREFIX_HITS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Server properties read before the first point."""

    model: str
    max_model_len: int | None
    """Limit of the model, or of the model that an adapter belongs to, because vLLM lists none for an adapter."""
    version: str | None
    simulated: str | None
    has_tokenizer: bool
    has_metrics: bool
    kv_cache_tokens: int | None = None
    """Tokens of all blocks of the KV cache; None if the server does not report them."""
    served: tuple[str, ...] = ()
    """All names that the server accepts as `model`, adapters included."""


async def inspect_server(client: OpenAIClient, model: str | None, *, chat: bool) -> ServerInfo:
    """Read the model, its length limit, the version, and whether the server has a tokenizer endpoint and metrics.

    Raises UnreachableError if it does not respond, and SweepError if it does not serve `model`.
    """
    answer = await client.get("/v1/models", limit_s=CALL_LIMIT_S)
    if answer.status != HTTPStatus.OK:
        denied = answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
        fix = f"Set {API_KEY_VARIABLE} to a key that the server accepts." if denied else "Check --url."
        raise SweepError(f"{client.base_url}/v1/models returned {answer.status} ({answer.message}). {fix}")
    models = served_models(answer.body)
    served = next((found for found in models if model in {None, found.id}), None)
    if served is None:
        names = ", ".join(found.id for found in models) or "nothing"
        raise SweepError(f"--model is {model!r}, but the server serves {names}.")
    version = await _ask(client, "GET", "/version")
    tokens = await _ask(client, "POST", "/tokenize", tokenize_body(served.id, "one", chat=chat))
    scrape = await client.scrape(limit_s=CALL_LIMIT_S)
    return ServerInfo(
        model=served.id,
        max_model_len=next((one.max_model_len for one in (served, *models) if one.max_model_len is not None), None),
        version=str(as_mapping(version.body).get("version")) if version else None,
        simulated=answer.simulated or served.simulator,
        has_tokenizer=tokens is not None and isinstance(as_mapping(tokens.body).get("count"), int),
        has_metrics=scrape is not None and scrape.total(GENERATION_TOKENS) is not None,
        kv_cache_tokens=_cache_tokens(scrape) if scrape is not None else None,
        served=tuple(found.id for found in models),
    )


def _cache_tokens(scrape: Scrape) -> int | None:
    """Return the tokens of all blocks of the KV cache, over all engines; None if the server does not report them.

    It is an upper limit, because a model with sliding windows needs blocks for each kind of layer.
    """
    sizes = [
        int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
        for name in CACHE_CONFIG
        for sample in scrape.samples.get(name, ())
        if sample.labels.get("num_gpu_blocks", "").isdecimal() and sample.labels.get("block_size", "").isdecimal()
    ]
    return sum(sizes) or None


async def _ask(client: OpenAIClient, method: str, path: str, body: object = None) -> ServerAnswer | None:
    with contextlib.suppress(ServerError):
        answer = await client.request(method, path, body=body, limit_s=CALL_LIMIT_S)
        return answer if answer.status == HTTPStatus.OK else None
    return None


def tokenize_body(model: str, prompt: str, *, chat: bool) -> dict[str, object]:
    """Return a request to /tokenize that counts a prompt like the measured endpoint."""
    if chat:
        return {"model": model, "messages": [{"role": "user", "content": prompt}], "add_generation_prompt": True}
    return {"model": model, "prompt": prompt}


async def count_by_tokenizer(client: OpenAIClient, model: str, prompt: str, *, chat: bool) -> int:
    """Return the token count of a prompt from the server's tokenizer endpoint. Raises ServerError."""
    answer = await client.post("/tokenize", tokenize_body(model, prompt, chat=chat), limit_s=CALL_LIMIT_S)
    found = as_mapping(answer.body).get("count")
    if answer.status != HTTPStatus.OK or not isinstance(found, int):
        raise ServerError(f"/tokenize returned {answer.status}: {answer.message}")
    return found


async def count_by_usage(client: OpenAIClient, model: str, prompt: str, *, chat: bool) -> int:
    """Return the token count of a prompt from the usage of a request for one token. Raises ServerError."""
    content: dict[str, object] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    answer = await client.post(
        path, {"model": model, "max_tokens": 1, "temperature": 0, **content}, limit_s=10 * CALL_LIMIT_S
    )
    if answer.status != HTTPStatus.OK or answer.usage is None:
        raise ServerError(f"{path} returned {answer.status} without usage: {answer.message}")
    return answer.usage.prompt_tokens


@dataclass(slots=True)
class Watch:
    """Metrics samples of one point."""

    kv_usage: list[float] = field(default_factory=list[float])
    running: list[float] = field(default_factory=list[float])
    waiting: list[float] = field(default_factory=list[float])
    before: Scrape | None = None
    after: Scrape | None = None
    scrapes_s: list[float] = field(default_factory=list[float])
    """Duration of each scrape, in seconds."""

    def take(self, scrape: Scrape) -> None:
        """Keep the gauges of one scrape."""
        for values, value in (
            (self.kv_usage, scrape.highest(KV_USAGE)),
            (self.running, scrape.total(RUNNING)),
            (self.waiting, scrape.total(WAITING)),
        ):
            if value is not None:
                values.append(value)

    def figures(self) -> dict[str, Any]:
        """Return gauges as mean and maximum, counters as their increase; None if the server does not export them."""
        figures: dict[str, Any] = {"samples": len(self.running)}
        for name, values in (
            ("kv_cache_usage", self.kv_usage),
            ("requests_running", self.running),
            ("requests_waiting", self.waiting),
        ):
            figures[f"{name}_mean"] = round(statistics.fmean(values), 4) if values else None
            figures[f"{name}_max"] = round(max(values), 4) if values else None
        for name, names in COUNTERS.items():
            grown = self._growth(names)
            figures[name] = None if grown is None else round(grown, 1)
        begun = self._growth(TTFT_COUNT)
        ttft_s = self._growth(TTFT_SUM)
        decode_s = self._growth(GAPS_SUM)
        figures["requests_begun"] = None if begun is None else round(begun)
        figures["mean_ttft_ms"] = round(ttft_s / begun * 1000, 4) if ttft_s is not None and begun else None
        figures["decode_s"] = None if decode_s is None else round(decode_s, 4)
        figures["round_trip_ms"] = round(min(self.scrapes_s) * 1000, 3) if self.scrapes_s else None
        queries, hits = figures["prefix_cache_queries"], figures["prefix_cache_hits"]
        figures["prefix_cache_hit_rate"] = round(hits / queries, 4) if queries and hits is not None else None
        return figures

    def _growth(self, names: tuple[str, ...]) -> float | None:
        first = self.before.total(names) if self.before else None
        last = self.after.total(names) if self.after else None
        return last - first if first is not None and last is not None else None


@contextlib.asynccontextmanager
async def watching(client: OpenAIClient, *, enabled: bool) -> AsyncGenerator[Watch]:
    """Sample the server's metrics while the context is open, once per second after the first few."""
    watch = Watch()
    if not enabled:
        yield watch
        return

    async def sample() -> None:
        pause_s = FIRST_SAMPLE_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, SAMPLE_PERIOD_S)
            began_s = now_s()
            found = await client.scrape(limit_s=5.0)
            watch.scrapes_s.append(now_s() - began_s)
            if found is not None:
                watch.take(found)

    watch.before = await client.scrape(limit_s=CALL_LIMIT_S)
    task = asyncio.create_task(sample())
    try:
        yield watch
        watch.after = await client.scrape(limit_s=CALL_LIMIT_S)
        if watch.after is not None and not watch.running:
            watch.take(watch.after)
    finally:
        task.cancel()
        await asyncio.wait({task})  # otherwise its request could start on a closed connection
