"""Command that measures the same point with vLLM's own benchmark."""

import json
import shlex
from collections.abc import Mapping

from loadtest.traffic.points import Point
from loadtest.traffic.spec import Traffic


def vllm_command(
    url: str,
    model: str,
    point: Point,
    *,
    requests: int,
    chat: bool,
    poisson: bool,
    overhead_tokens: int = 0,
    tokenizer: str | None = None,
    warm_ups: int = 0,
    traffic: Traffic | None = None,
    extra_body: Mapping[str, object] | None = None,
) -> str:
    """Return a `vllm bench serve` command line for one point, or an empty string if that tool has no such load.

    `requests` is the number of requests sent, and `tokenizer` the model's name on Hugging Face, if it is not `model`. vLLM adds
    the chat template's tokens (`overhead_tokens`) to the length of its random prompts, so they are subtracted here.
    """
    traffic = traffic or Traffic()
    if traffic.varied:
        return ""
    arguments = [
        "vllm", "bench", "serve",
        "--backend", "openai-chat" if chat else "openai",
        "--base-url", url,
        "--endpoint", "/v1/chat/completions" if chat else "/v1/completions",
        "--model", tokenizer or model,
        "--served-model-name", model,
        "--tokenizer", tokenizer or model,
        *_prompts(point, traffic, overhead_tokens if chat else 0),
        "--num-prompts", str(requests),
        "--num-warmups", str(warm_ups),
        "--temperature", "0",
        "--seed", str(point.seed % (1 << 32)),
        "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", "90,99",
    ]  # fmt: skip
    if extra_body:
        arguments += ["--extra-body", json.dumps(extra_body)]
    if point.concurrency is not None:
        arguments += ["--max-concurrency", str(point.concurrency)]
    else:
        arguments += ["--request-rate", f"{point.request_rate:g}"]
        # vLLM draws gaps from a gamma distribution: 1 is Poisson, a large shape gives constant intervals.
        arguments += ["--burstiness", "1.0" if poisson else "1000"]
    return shlex.join(arguments)


def _prompts(point: Point, traffic: Traffic, overhead_tokens: int) -> list[str]:
    if traffic.dataset is not None:
        # vLLM reads JSONL with `prompt` as `custom`, and a JSON array of conversations as `sharegpt`.
        form = "sharegpt" if traffic.dataset.suffix == ".json" else "custom"
        return ["--dataset-name", form, "--dataset-path", str(traffic.dataset)]
    text_tokens = max(1, point.input_tokens - overhead_tokens)
    shared = traffic.prefix_tokens or round((traffic.prefix_share or 0.0) * text_tokens)
    lengths = ["--dataset-name", "random"]
    if shared:
        shared = min(shared, text_tokens - 1)
        lengths += ["--random-prefix-len", str(shared)]
    lengths += ["--random-input-len", str(text_tokens - shared)]
    return [*lengths, "--random-output-len", str(point.output_tokens), "--ignore-eos"]
