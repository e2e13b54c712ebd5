"""Metrics are read as vLLM writes them, or unknown."""

import asyncio
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from loadtest.client.metrics import (
    GENERATION_TOKENS,
    TTFT_COUNT,
    TTFT_SUM,
    WAITING,
    parse_metrics,
)
from loadtest.client.openai import OpenAIClient
from loadtest.served_model import watching


@contextmanager
def server(tokens):
    """A server with this counter, which a test may change. While it is None, the server does not answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            count = tokens["count"]
            self.send_response(200 if count is not None else 503)
            self.end_headers()
            self.wfile.write(f"vllm:generation_tokens_total {count}\n".encode() if count is not None else b"")

        def log_message(self, *_):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()


def test_a_counter_that_cannot_be_read_at_the_end_makes_its_growth_unknown():
    async def read(url, after):
        async with OpenAIClient(url) as client:
            async with watching(client, enabled=True) as watch:
                tokens["count"] = after
            return watch.figures()["generation_tokens"], await client.scrape(limit_s=30)

    tokens = {"count": 20}
    with server(tokens) as url:
        grown, scrape = asyncio.run(read(url, 30))
        assert (grown, scrape.total(GENERATION_TOKENS)) == (10, 30)
        assert asyncio.run(read(url, None)) == (None, None)


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
