"""Counters and histograms in Prometheus text, under vLLM's names and labels."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_INTERVAL: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_TOKENS: Final = tuple(float(base * 10**power) for power in range(6) for base in (1, 2, 5))
_FINISHED: Final = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """A cumulative histogram; values in the unit that its name says."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Yield the exposition lines."""
        total = 0
        for bound, number in zip((*map(_number, self._bounds), "+Inf"), self._counts, strict=True):
            total += number
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self._sum!r}"


def _number(value: float) -> str:
    return repr(float(value))


class Metrics:
    """The server's counters. The engine adds to the attributes."""

    def __init__(self, model_name: str, cache_config: Mapping[str, object]) -> None:
        self._model_name = model_name
        self._cache_config = cache_config
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.finished = dict.fromkeys(_FINISHED, 0)
        self.ttft_s = Histogram(_TTFT)
        self.inter_token_s = Histogram(_INTERVAL)
        self.time_per_output_token_s = Histogram(_INTERVAL)
        self.e2e_s = Histogram(_LATENCY)
        self.queue_s = Histogram(_LATENCY)
        self.inference_s = Histogram(_LATENCY)
        self.prefill_s = Histogram(_LATENCY)
        self.decode_s = Histogram(_LATENCY)
        self.request_prompt_tokens = Histogram(_TOKENS)
        self.request_generation_tokens = Histogram(_TOKENS)
        self.request_max_tokens = Histogram(_TOKENS)

    def render(self, *, running: int, waiting: int, kv_usage: float) -> str:
        """Return the whole exposition; `kv_usage` is a share (1 is full), whatever the metric's name says."""
        model = _escaped(self._model_name)
        labels = f'engine="0",model_name="{model}"'
        out: list[str] = []

        def metric(name: str, kind: str, help_: str, value: float) -> None:
            family = name.removesuffix("_total") if kind == "counter" else name
            out.extend((f"# HELP {family} {help_}", f"# TYPE {family} {kind}", f"{name}{{{labels}}} {float(value)}"))

        metric("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", running)
        metric("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", waiting)
        metric("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", kv_usage)
        metric(
            "vllm:prefix_cache_queries_total",
            "counter",
            "Prefix cache queries, in terms of number of queried tokens.",
            self.prefix_cache_queries,
        )
        metric(
            "vllm:prefix_cache_hits_total",
            "counter",
            "Prefix cache hits, in terms of number of cached tokens.",
            self.prefix_cache_hits,
        )
        metric("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", 0)
        metric("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", self.prompt_tokens)
        metric(
            "vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", self.generation_tokens
        )
        out.append("# HELP vllm:request_success Count of successfully processed requests.")
        out.append("# TYPE vllm:request_success counter")
        out.extend(
            f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{model}"}} {float(number)}'
            for reason, number in self.finished.items()
        )
        for name, help_, histogram in self._histograms():
            out.extend((f"# HELP {name} {help_}", f"# TYPE {name} histogram"))
            out.extend(histogram.lines(name, labels))
        pairs = ",".join(f'{key}="{_escaped(str(value))}"' for key, value in sorted(self._cache_config.items()))
        out.append("# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig")
        out.append("# TYPE vllm:cache_config_info gauge")
        out.append(f"vllm:cache_config_info{{{pairs}}} 1.0")
        return "\n".join(out) + "\n"

    def _histograms(self) -> Iterator[tuple[str, str, Histogram]]:
        seconds = "in seconds."
        yield "vllm:time_to_first_token_seconds", f"Histogram of time to first token {seconds}", self.ttft_s
        yield "vllm:inter_token_latency_seconds", f"Histogram of inter-token latency {seconds}", self.inter_token_s
        yield (
            "vllm:request_time_per_output_token_seconds",
            f"Histogram of time_per_output_token_seconds per request {seconds}",
            self.time_per_output_token_s,
        )
        yield "vllm:e2e_request_latency_seconds", f"Histogram of e2e request latency {seconds}", self.e2e_s
        yield "vllm:request_queue_time_seconds", f"Histogram of time in WAITING phase {seconds}", self.queue_s
        yield "vllm:request_inference_time_seconds", f"Histogram of time in RUNNING phase {seconds}", self.inference_s
        yield "vllm:request_prefill_time_seconds", f"Histogram of time in PREFILL phase {seconds}", self.prefill_s
        yield "vllm:request_decode_time_seconds", f"Histogram of time in DECODE phase {seconds}", self.decode_s
        yield "vllm:request_prompt_tokens", "Number of prefill tokens processed.", self.request_prompt_tokens
        yield "vllm:request_generation_tokens", "Number of generation tokens.", self.request_generation_tokens
        yield (
            "vllm:request_params_max_tokens",
            "Histogram of the max_tokens request parameter.",
            self.request_max_tokens,
        )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
