"""Cost, accuracy and maximum streams of the benchmark's client: `python -m authors.benchmarks.bench_client`.

- cost: processor seconds per 1,000 streamed requests at concurrency 256 and 1,024, as a ratio to a bare aiohttp loop that only reads the same
  streams. Both run in separate processes, alternately, against the same server, including connections and prompts.
- accuracy: time to first token, time per output token and throughput against a server of known timing, at concurrency 1, 64 and 1,024.
- streams: 2,048 concurrent open streams, and the client's errors.

The server (packages/loadtest/tests/timed_server.py) counts its own lateness, which is also printed, because it may share cores with the client.
The values are specific to one machine. Only the ratios are comparable.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

from loadtest.client.wire import now_s
from loadtest.endpoint import Endpoint
from loadtest.generator.load import LoadGenerator, Share
from loadtest.generator.pool import raise_open_files_limit
from loadtest.progress import Reporter
from loadtest.settings import SweepSettings
from loadtest.store import read_results
from loadtest.sweep import run_sweep
from loadtest.traffic.points import Sweep
from loadtest.traffic.prompts import POOL, PromptMaker, Recipe

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "packages" / "loadtest" / "tests" / "timed_server.py"
TTFT_S = 1.0
TPOT_S = 0.05
COST_STREAMS = (256, 1024)
FEWEST_REQUESTS = 1024
"""Requests of a measured process, so that its first connections and its start are a small part of its cost."""
BODY = {"model": "timed", "stream": True, "stream_options": {"include_usage": True}}


@contextlib.contextmanager
def serving(ttft_s: float, tpot_s: float) -> Generator[str]:
    """Run the server of known timing while the context is open."""
    command = [sys.executable, str(SERVER), "--ttft-s", str(ttft_s), "--tpot-s", str(tpot_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if process.stdout is None:
            raise SystemExit("the server has no output")
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
    finally:
        process.kill()
        process.wait()


def control(url: str) -> dict[str, float]:
    """Return the server's counts."""
    with urllib.request.urlopen(f"{url}/control", timeout=10) as answer:  # noqa: S310 - our own loopback server
        return json.load(answer)


async def read_with_aiohttp(url: str, streams: int, requests: int, tokens: int) -> int:
    """Read every stream to its end without processing it: the bare loop."""
    import aiohttp  # noqa: PLC0415 - the other candidate does not load it

    maker, left, read = PromptMaker(Recipe(words=POOL, count=32, seed=1)), iter(range(requests)), 0
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def slot() -> None:
            nonlocal read
            for index in left:
                body = {**BODY, "max_tokens": tokens, "messages": [{"role": "user", "content": maker.prompt(index)}]}
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    async for _ in answer.content.iter_any():
                        pass
                    read += answer.ok

        await asyncio.gather(*(slot() for _ in range(streams)))
    return read


async def read_with_ours(url: str, streams: int, requests: int, tokens: int) -> int:
    """Run the load generator like the benchmark: time every event, count, and keep a record of each request."""
    share = Share(
        url=url,
        path="/v1/chat/completions",
        headers={},
        body={**BODY, "max_tokens": tokens},
        recipe=Recipe(words=POOL, count=32, seed=1),
        first_index=0,
        worker=0,
        workers=1,
        concurrency=streams,
        rate_per_s=None,
        poisson=False,
        requests=requests,
        duration_s=None,
        request_timeout_s=600,
        stall_timeout_s=60,
    )
    generator = LoadGenerator(share, asyncio.get_running_loop())
    await generator.prepare()
    result = await generator.run(now_s())
    return sum(record.error is None and record.output_tokens == tokens for record in result.records)


def candidate(name: str, url: str, streams: int, requests: int, tokens: int) -> None:
    """Run one measured process, which prints its processor seconds."""
    reader = {"aiohttp": read_with_aiohttp, "ours": read_with_ours}[name]
    if name == "aiohttp":
        importlib.import_module("aiohttp")  # loading it is not part of the loop; ours is loaded above
    before_s = time.process_time()
    done = asyncio.run(reader(url, streams, requests, tokens))
    print(json.dumps({"cpu_s": time.process_time() - before_s, "done": done}))


def cost(streams: int, rounds: int) -> dict[str, Any]:
    """Measure the processor time of both clients, alternately."""
    requests, tokens = max(2 * streams, FEWEST_REQUESTS), 64
    found: dict[str, list[float]] = {"aiohttp": [], "ours": []}
    with serving(0.2, 0.05) as url:
        for turn in range(rounds):
            for name in ("aiohttp", "ours") if turn % 2 == 0 else ("ours", "aiohttp"):
                words = [
                    "--candidate",
                    name,
                    "--url",
                    url,
                    "--streams",
                    str(streams),
                    "--requests",
                    str(requests),
                    "--tokens",
                    str(tokens),
                ]
                run = subprocess.run(
                    [sys.executable, "-m", "authors.benchmarks.bench_client", *words],
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                answer = json.loads(run.stdout)
                if answer["done"] != requests:
                    raise SystemExit(
                        f"{name}: {answer['done']} of {requests} requests were complete, so the results are not comparable."
                    )
                found[name].append(answer["cpu_s"] / requests * 1000)
    medians = {name: statistics.median(values) for name, values in found.items()}
    return {
        "cpu_s_per_1000_requests": medians,
        "ratio": medians["ours"] / medians["aiohttp"],
        "rounds": found,
        "streams": streams,
        "tokens": tokens,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }


def _sweep(url: str, out: Path, levels: tuple[int, ...], tokens: int) -> list[dict[str, Any]]:
    sweep = Sweep(
        concurrency=levels,
        request_rate=(),
        input_tokens=(32,),
        output_tokens=(tokens,),
        requests=None,
        duration_s=None,
        seed=1,
    )
    settings = SweepSettings(url=url, model=None, out=out, warm_up=1)
    outcome = run_sweep(settings, sweep, Endpoint(base_url=url), Reporter("bench_client"))
    if outcome.ending != "done":
        raise SystemExit(f"the sweep ended early: {outcome.detail}")
    return read_results(out)


def accuracy(levels: tuple[int, ...], ttft_s: float, tpot_s: float, tokens: int) -> list[dict[str, Any]]:
    """Return the error of each metric relative to the server's timing."""
    rows: list[dict[str, Any]] = []
    whole_s = ttft_s + (tokens - 1) * tpot_s
    for level in levels:
        with serving(ttft_s, tpot_s) as url, tempfile.TemporaryDirectory() as folder:
            (result,) = _sweep(url, Path(folder), (level,), tokens)
            seen = control(url)
        rows.append(
            {
                "concurrency": level,
                "ttft_error": result["mean_ttft_ms"] / 1000 / ttft_s - 1,
                "tpot_error": result["mean_tpot_ms"] / 1000 / tpot_s - 1,
                "throughput_error": result["output_throughput"] / (level * tokens / whole_s) - 1,
                "server_late_mean_ms": seen["late_sum_s"] / seen["late_count"] * 1000,
                "client_lag_mean_ms": result["client"]["lag_mean_ms"],
                "valid": result["valid"],
            }
        )
    return rows


def held_open(streams: int) -> dict[str, Any]:
    """Hold streams open concurrently and count them."""
    with serving(3.0, 0.25) as url, tempfile.TemporaryDirectory() as folder:
        sweep_tokens = 16
        (result,) = _sweep(url, Path(folder), (streams,), sweep_tokens)
        seen = control(url)
    return {
        "streams": streams,
        "open_at_once": int(seen["max_open"]),
        "completed": result["completed"],
        "errors": result["errors_by_kind"],
        "valid": result["valid"],
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the cost comparison")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--candidate", choices=("aiohttp", "ours"), help=argparse.SUPPRESS)
    for name in ("url", "streams", "requests", "tokens"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    raise_open_files_limit()
    if options.candidate:
        candidate(options.candidate, options.url, int(options.streams), int(options.requests), int(options.tokens))
        return
    costs = [cost(streams, options.rounds) for streams in COST_STREAMS]
    exact = accuracy((1, 64, 1024), ttft_s=TTFT_S, tpot_s=TPOT_S, tokens=64)
    held = held_open(2048)
    if options.json:
        print(json.dumps({"cost": costs, "accuracy": exact, "streams": held}))
        return
    print("cost, processor seconds per 1,000 requests of 64 tokens, no request lost (target: a ratio of at most 0.5):")
    for row in costs:
        each = row["cpu_s_per_1000_requests"]
        print(
            f"  {row['streams']:>5}: ours {each['ours']:.3f}, bare aiohttp {each['aiohttp']:.3f}, ratio {row['ratio']:.2f}"
            f" (load average {row['load_average']:.1f} on {row['cores']} cores)"
        )
    print(f"accuracy against {TTFT_S:g} s to the first token and {TPOT_S * 1000:g} ms per token (target: within 2 %):")
    for row in exact:
        errors = ", ".join(f"{name} {row[f'{name}_error']:+.2%}" for name in ("ttft", "tpot", "throughput"))
        late = f"mean lateness: server {row['server_late_mean_ms']:.1f} ms, client {row['client_lag_mean_ms']:.2f} ms"
        print(f"  {row['concurrency']:>5}: {errors} ({late})")
    print(
        f"streams: {held['open_at_once']} concurrent, {held['completed']} complete, errors {held['errors'] or 'none'}"
    )


if __name__ == "__main__":
    main()
