"""A run of a benchmark's tool, for the tests of the comparison with a real vLLM."""

from dataclasses import replace

from dev.judges.real_vllm.judge import RealVllmRun


def measured(slow: float = 1.0, tool: float = 1.0, requests: int = 32, **changed) -> RealVllmRun:
    """Return a run of requests with 256 tokens in and 64 out.

    The server takes 20 ms and 3 ms per token, times `slow`; the tool adds its factor to every time.
    """
    ttft, tpot = 20.0 * slow, 3.0 * slow
    e2el = ttft + 63 * tpot
    figures = {"ttft": ttft * tool, "tpot": tpot * tool, "itl": tpot * tool, "e2el": e2el * tool}
    seconds = {"ttft": requests * ttft / 1000, "e2el": requests * e2el / 1000, "decode": requests * 63 * tpot / 1000}
    counts = {"requests": requests, "input_tokens": requests * 256, "output_tokens": requests * 64}
    throughput = 4 * 64 / (e2el * tool / 1000)
    whole = RealVllmRun(figures={**figures, "throughput": throughput}, failed=0, server={**seconds, **counts}, **counts)
    return replace(whole, **changed)
