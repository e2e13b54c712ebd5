"""Metrics are read as vLLM writes them; those of several servers behind one address are added up, or unknown."""

import asyncio
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from loadtest.client.metrics import (
    CACHE_CONFIG,
    GENERATION_TOKENS,
    KV_USAGE,
    TTFT_COUNT,
    TTFT_SUM,
    WAITING,
    parse_metrics,
)
from loadtest.client.openai import OpenAIClient, ServerError
from loadtest.server import watching

PATHS = ("/-/a/metrics", "/-/b/metrics")


@contextmanager
def servers(tokens):
    """A gateway to servers with these counters, by name. A server whose counter is None does not answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            count = tokens.get(self.path.split("/")[2])
            self.send_response(200 if count is not None else 503)
            self.end_headers()
            labels = f'{{engine="0",model_name="{self.path}"}}'
            lines = (
                f"vllm:generation_tokens_total{labels} {count}",
                f"vllm:kv_cache_usage_perc{labels} 0.{count}",
                'vllm:cache_config_info{block_size="16"} 1.0',
            )
            self.wfile.write("\n".join(lines).encode() if count is not None else b"no healthy upstream")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def test_counters_of_servers_add_up_and_a_server_that_cannot_be_read_makes_the_sum_unknown():
    async def read(url, paths=PATHS):
        async with OpenAIClient(url, metrics_paths=paths) as client:
            async with watching(client, enabled=True) as watch:
                tokens["b"] = 30 if tokens["b"] == 20 else tokens["b"]
            try:
                return watch.figures()["generation_tokens"], await client.metrics(limit_s=30)
            except ServerError as error:
                return watch.figures()["generation_tokens"], str(error)

    tokens = {"a": 10, "b": 20}
    with servers(tokens) as url:
        grown, scrape = asyncio.run(read(url))
        assert (grown, scrape.total(GENERATION_TOKENS)) == (10, 40)
        assert scrape.highest(KV_USAGE) == pytest.approx(0.3)
        assert scrape.labels(CACHE_CONFIG) == {"block_size": "16"}
        tokens["b"] = None
        assert asyncio.run(read(url)) == (None, "/-/b/metrics returned 503")
        grown, said = asyncio.run(read(url, ()))
        assert (grown, "can be read without starting it" in said) == (None, True)


def test_what_the_library_of_vllm_writes_is_read_with_its_names():
    registry, labels = CollectorRegistry(), ["engine", "model_name"]
    tokens = Counter("vllm:generation_tokens", "Tokens.", labels, registry=registry)
    tokens.labels("0", 'a,b="c"}').inc(3)
    tokens.labels("1", "m").inc(4)
    Gauge("vllm:num_requests_waiting", "Waiting.", labels, registry=registry).labels("0", "m").set(float("nan"))
    times = Histogram("vllm:time_to_first_token_seconds", "Times.", labels, registry=registry)
    times.labels("0", "m").observe(0.25)
    created = 'vllm:request_success_created{engine="0"} 1.7e+09\n'  # unless a process switches these series off
    scrape = parse_metrics(generate_latest(registry).decode() + created)
    assert (scrape.total(GENERATION_TOKENS), scrape.series(GENERATION_TOKENS)) == (7, 2)
    assert scrape.labels(GENERATION_TOKENS) == {"engine": "0", "model_name": 'a,b="c"}'}
    assert (scrape.total(TTFT_SUM), scrape.total(TTFT_COUNT), scrape.total(WAITING)) == (0.25, 1, None)
    assert scrape.highest(("vllm:request_success_created",)) == 1.7e9
