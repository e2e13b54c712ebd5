"""Build the command with which vLLM's own benchmark measures the same point."""

import shlex

from scripts.bench.points import Point


def vllm_command(url: str, model: str, point: Point, *, requests: int, chat: bool, poisson: bool) -> str:
    """Return a `vllm bench serve` command line for one point; `requests` is the number of requests that were sent."""
    arguments = [
        "vllm", "bench", "serve",
        "--backend", "openai-chat" if chat else "openai",
        "--base-url", url,
        "--endpoint", "/v1/chat/completions" if chat else "/v1/completions",
        "--model", model,
        "--dataset-name", "random",
        "--random-input-len", str(point.input_tokens),
        "--random-output-len", str(point.output_tokens),
        "--num-prompts", str(requests),
        "--ignore-eos",
        "--seed", str(point.seed % (1 << 32)),
        "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", "90,99",
    ]  # fmt: skip
    if point.concurrency is not None:
        arguments += ["--max-concurrency", str(point.concurrency)]
    else:
        arguments += ["--request-rate", f"{point.request_rate:g}"]
        # vLLM draws gaps from a gamma distribution: 1 is Poisson, a large shape gives constant intervals.
        arguments += ["--burstiness", "1.0" if poisson else "1000"]
    return shlex.join(arguments)
