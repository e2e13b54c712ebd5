"""Cost, accuracy and maximum streams of the benchmark's client: `python -m dev.judges.benchmarks.bench_client [ROUNDS]`.

- cost: processor seconds per 1,000 streamed requests at concurrency 256 and 1,024, as a ratio to a bare aiohttp loop that only reads the same
  streams. Both run in separate processes, alternately, against the same server, including connections and prompts.
- accuracy: time to first token, time per output token and throughput against a server of known timing, at concurrency 1, 64 and 1,024.
- streams: 2,048 concurrent open streams, and the client's errors.

The server (packages/loadtest/tests/timed_server.py) counts its own lateness, which is also printed, because it may share cores with the client.
The values are specific to one machine. Only the ratios are comparable.
"""

import asyncio
import contextlib
import importlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from loadtest.client.wire import now_s
from loadtest.endpoint import Endpoint
from loadtest.generator.load import LoadGenerator, Share
from loadtest.generator.pool import raise_open_files_limit
from loadtest.progress import Reporter
from loadtest.settings import SweepSettings
from loadtest.store import read_results
from loadtest.sweep import run_sweep
from loadtest.traffic.makers import SyntheticSource
from loadtest.traffic.points import Sweep
from loadtest.traffic.prompts import POOL, Calibration, PromptMaker, Recipe
from loadtest.traffic.spec import FIXED_LENGTHS

SERVER: Final = Path(__file__).resolve().parents[3] / "packages" / "loadtest" / "tests" / "timed_server.py"
DEFAULT_ROUNDS: Final = 3
TTFT_S: Final = 1.0
TPOT_S: Final = 0.05
TOKENS: Final = 64
COST_STREAMS: Final = (256, 1024)
EXACT_STREAMS: Final = (1, 64, 1024)
HELD_STREAMS: Final = 2048
FEWEST_REQUESTS: Final = 1024
"""Requests of a measured process, so its first connections and its start are a small part of its cost."""
BODY: Final = {"model": "timed", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": TOKENS}


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


async def read_with_aiohttp(url: str, streams: int, requests: int) -> int:
    """Read every stream to its end without processing it: the bare loop."""
    import aiohttp  # noqa: PLC0415 - the other candidate does not load it

    maker = PromptMaker(Recipe(words=POOL, count=32, seed=1))
    left = iter(range(requests))
    read = 0
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def slot() -> None:
            nonlocal read
            for index in left:
                body = {**BODY, "messages": [{"role": "user", "content": maker.prompt(index)}]}
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    async for _ in answer.content.iter_any():
                        pass
                    read += answer.ok

        await asyncio.gather(*(slot() for _ in range(streams)))
    return read


async def read_with_ours(url: str, streams: int, requests: int) -> int:
    """Run the load generator like the benchmark: time every event, count, and keep a record of each request."""
    source = SyntheticSource(
        recipe=Recipe(words=POOL, count=32, seed=1),
        calibration=Calibration(source="tokenize", words=POOL, overhead_tokens=0, tokens_per_word=1.0),
        correction=0,
        input_tokens=32,
        output_tokens=TOKENS,
        most_tokens=None,
        traffic=FIXED_LENGTHS,
    )
    share = Share(
        url=url,
        path="/v1/chat/completions",
        headers={},
        body=BODY,
        source=source,
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
    return sum(record.error is None and record.output_tokens == TOKENS for record in result.records)


READERS: Final = {"aiohttp": read_with_aiohttp, "ours": read_with_ours}


def candidate(name: str, url: str, streams: int, requests: int) -> float:
    """Return the processor seconds of one client in this process. Run in a separate process."""
    raise_open_files_limit()
    if name == "aiohttp":
        importlib.import_module("aiohttp")  # loading it is not part of the loop; ours is loaded above
    before_s = time.process_time()
    done = asyncio.run(READERS[name](url, streams, requests))
    if done != requests:
        raise RuntimeError(f"{name}: {done} of {requests} requests were complete, so the results are not comparable")
    return time.process_time() - before_s


def cost(streams: int, rounds: int) -> str:
    """Return the processor time of both clients, measured alternately."""
    requests = max(2 * streams, FEWEST_REQUESTS)
    found: dict[str, list[float]] = {name: [] for name in READERS}
    with serving(0.2, 0.05) as url:
        for turn in range(rounds):
            for name in READERS if turn % 2 == 0 else reversed(READERS):
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                    cpu_s = process.submit(candidate, name, url, streams, requests).result()
                found[name].append(cpu_s / requests * 1000)
    medians = {name: statistics.median(values) for name, values in found.items()}
    each = ", ".join(f"{name} {median:.3f}" for name, median in medians.items())
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    return f"{streams:>5}: {each}, ratio {medians['ours'] / medians['aiohttp']:.2f} ({load})"


def sweep_at(streams: int, ttft_s: float, tpot_s: float, tokens: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the result of one point against a server of this timing, and the server's own counts."""
    sweep = Sweep(
        concurrency=(streams,),
        request_rate=(),
        input_tokens=(32,),
        output_tokens=(tokens,),
        requests=None,
        duration_s=None,
        seed=1,
    )
    with serving(ttft_s, tpot_s) as url, tempfile.TemporaryDirectory() as folder:
        settings = SweepSettings(url=url, model=None, out=Path(folder), warm_up=1)
        outcome = run_sweep(settings, sweep, Endpoint(base_url=url), Reporter("bench_client"))
        if outcome.ending != "done":
            raise SystemExit(f"the sweep ended early: {outcome.detail}")
        (result,) = read_results(Path(folder))
        with urllib.request.urlopen(f"{url}/control", timeout=10) as answer:  # noqa: S310 - our own loopback server
            return result, json.load(answer)


def accuracy(streams: int) -> str:
    """Return the error of each metric relative to the server's timing."""
    result, server = sweep_at(streams, TTFT_S, TPOT_S, TOKENS)
    rate = streams * TOKENS / (TTFT_S + (TOKENS - 1) * TPOT_S)
    errors = {
        "ttft": result["mean_ttft_ms"] / 1000 / TTFT_S,
        "tpot": result["mean_tpot_ms"] / 1000 / TPOT_S,
        "throughput": result["output_throughput"] / rate,
    }
    shown = ", ".join(f"{name} {factor - 1:+.2%}" for name, factor in errors.items())
    late_ms = server["late_sum_s"] / server["late_count"] * 1000
    return f"{streams:>5}: {shown} (mean lateness: server {late_ms:.1f} ms, client {result['client']['lag_mean_ms']:.2f} ms)"


def main() -> None:
    """Run the benchmark."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else DEFAULT_ROUNDS
    raise_open_files_limit()
    print("cost, processor seconds per 1,000 requests of 64 tokens, no request lost (target: a ratio of at most 0.5):")
    for streams in COST_STREAMS:
        print(f"  {cost(streams, rounds)}")
    print(f"accuracy against {TTFT_S:g} s to the first token and {TPOT_S * 1000:g} ms per token (target: within 2 %):")
    for streams in EXACT_STREAMS:
        print(f"  {accuracy(streams)}")
    result, server = sweep_at(HELD_STREAMS, 3.0, 0.25, 16)
    errors = result["errors_by_kind"] or "none"
    print(f"streams: {int(server['max_open'])} concurrent, {result['completed']} complete, errors {errors}")


if __name__ == "__main__":
    main()
