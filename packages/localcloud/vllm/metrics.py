"""Counters and histograms in Prometheus text, under vLLM's names and labels."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from localcloud.json_values import packaged, part, parts
from localcloud.vllm.speculation import Speculation

_TABLES: Final = packaged("localcloud.vllm", "metrics.json")
_TTFT = part(_TABLES, "buckets")["ttft"]
_INTERVAL = part(_TABLES, "buckets")["interval"]
_LATENCY = part(_TABLES, "buckets")["latency"]
_MANTISSAS: Final = (1, 2, 5)
_FINISHED: Final = ("stop", "length", "abort", "error", "repetition")
_UNCOUNTED: Final = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
"""Source: vllm/entrypoints/serve/instrumentator/metrics.py, `excluded_handlers`."""
_DURATION_S: Final = (0.1, 0.5, 1.0)
"""Buckets of the histogram by handler (prometheus_fastapi_instrumentator/metrics.py, `latency_lowr_buckets`)."""
_NO_HANDLER: Final = "none"
"""Handler of all paths that match no route."""


class Histogram:
    """A cumulative histogram. The unit of its values is part of its name."""

    def __init__(self, name: str, description: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._description = description
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, labels: str) -> Iterator[str]:
        """Yield the exposition lines of a metric with one series."""
        yield f"# HELP {self._name} {self._description}"
        yield f"# TYPE {self._name} histogram"
        yield from self.samples(labels)

    def samples(self, labels: str) -> Iterator[str]:
        """Yield the samples of this series."""
        name, total = self._name, 0
        bounds = (*(repr(float(bound)) for bound in self._bounds), "+Inf")
        for bound, number in zip(bounds, self._counts, strict=True):
            total += number
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self._sum!r}"


class HttpMetrics:
    """Requests by handler, method and class of status, and their durations, as prometheus-fastapi-instrumentator has them.

    Requests that a middleware or the API key refuses are not counted, because vLLM adds both outside the counter, and neither are probes.
    """

    def __init__(self) -> None:
        self._started_at = time.time()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[tuple[str, str], Histogram] = {}

    def count(self, handler: str | None, method: str, status: int, duration_s: float) -> None:
        """Count a finished request. `handler` is the route's path, None if no route matches."""
        if handler in _UNCOUNTED:
            return
        name = handler or _NO_HANDLER
        self._requests[name, method, f"{status // 100}xx"] += 1
        if (name, method) not in self._durations:
            self._durations[name, method] = Histogram("http_request_duration_seconds", "", _DURATION_S)
        self._durations[name, method].observe(duration_s)

    def lines(self, *, api_servers: int = 1) -> Iterator[str]:
        """Yield the exposition lines. Several API servers share a registry without figures of a process (prometheus_client, multiprocess mode)."""
        if api_servers == 1:
            yield "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds."
            yield "# TYPE process_start_time_seconds gauge"
            yield f"process_start_time_seconds {self._started_at:.2f}"
        yield "# HELP http_requests_total Total number of requests by method, status and handler."
        yield "# TYPE http_requests_total counter"
        for (handler, method, status), number in self._requests.items():
            yield f'http_requests_total{{handler="{handler}",method="{method}",status="{status}"}} {float(number)}'
        yield "# HELP http_request_duration_seconds Latency with only few buckets by handler."
        yield "# TYPE http_request_duration_seconds histogram"
        for (handler, method), durations in self._durations.items():
            yield from durations.samples(f'handler="{handler}",method="{method}"')


def merged(expositions: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of several engines, with the samples of all of them below one header for each metric."""
    families: dict[str, list[str]] = {}
    for exposition in expositions:
        family: list[str] = []
        for line in exposition:
            if line.startswith("# HELP"):
                family = families.setdefault(line, [])
            elif not line.startswith("#") or line not in family:
                family.append(line)
    for header, lines in families.items():
        yield header
        yield from lines


class Metrics:
    """The counters of one engine, and of the server's HTTP requests. The engine increments the attributes."""

    def __init__(
        self,
        model_name: str,
        cache_config: Mapping[str, object],
        *,
        max_model_len: int,
        speculation: Speculation | None = None,
        engine: int = 0,
    ) -> None:
        self._model_name = model_name
        self._engine = engine
        self._cache_config = cache_config
        self.http = HttpMetrics()
        self.speculation = speculation
        self.preemptions = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.finished = dict.fromkeys(_FINISHED, 0)
        self._histograms: list[Histogram] = []
        tokens = tuple(_token_buckets(max_model_len))
        self.ttft_s = self._seconds("time_to_first_token", "time to first token", _TTFT)
        self.inter_token_s = self._seconds("inter_token_latency", "inter-token latency", _INTERVAL)
        self.time_per_output_token_s = self._seconds(
            "request_time_per_output_token", "time_per_output_token_seconds per request", _INTERVAL
        )
        self.e2e_s = self._seconds("e2e_request_latency", "e2e request latency", _LATENCY)
        self.queue_s = self._seconds("request_queue_time", "time in WAITING phase", _LATENCY)
        self.inference_s = self._seconds("request_inference_time", "time in RUNNING phase", _LATENCY)
        self.prefill_s = self._seconds("request_prefill_time", "time in PREFILL phase", _LATENCY)
        self.decode_s = self._seconds("request_decode_time", "time in DECODE phase", _LATENCY)
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Number of prefill tokens processed.", tokens
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Number of generation tokens.", tokens
        )
        self.request_max_tokens = self._histogram(
            "request_params_max_tokens", "Histogram of the max_tokens request parameter.", tokens
        )

    def _seconds(self, name: str, what: str, bounds: Sequence[float]) -> Histogram:
        return self._histogram(f"{name}_seconds", f"Histogram of {what} in seconds.", bounds)

    def _histogram(self, name: str, description: str, bounds: Sequence[float]) -> Histogram:
        self._histograms.append(Histogram(f"vllm:{name}", description, bounds))
        return self._histograms[-1]

    def lines(self, *, running: int, waiting: int, kv_usage: float) -> list[str]:
        """Return the lines of this engine. `kv_usage` is a fraction (1 is full), despite the metric's name."""
        model = _escaped(self._model_name)
        labels = f'engine="{self._engine}",model_name="{model}"'
        out: list[str] = []
        values = {**vars(self), "running": running, "waiting": waiting, "kv_usage": kv_usage}
        for row in parts(_TABLES, "families"):
            name = row["name"]
            description = row["description"]
            value = values[row["value"]]
            out.append(f"# HELP vllm:{name} {description}")
            out.append(f"# TYPE vllm:{name} {'counter' if name.endswith('_total') else 'gauge'}")
            out.append(f"vllm:{name}{{{labels}}} {float(value)}")
        by_reason = "vllm:num_requests_waiting_by_reason"
        out.append(f"# HELP {by_reason} Number of waiting requests by reason: waiting for capacity, or deferred.")
        out.append(f"# TYPE {by_reason} gauge")
        # Nothing that the simulator supports defers a request.
        for reason, number in (("capacity", waiting), ("deferred", 0)):
            out.append(f'{by_reason}{{{labels},reason="{reason}"}} {float(number)}')
        if self.speculation is not None:
            out.extend(self.speculation.lines(labels))
        out.append("# HELP vllm:request_success_total Count of successfully processed requests.")
        out.append("# TYPE vllm:request_success_total counter")
        out.extend(
            f'vllm:request_success_total{{engine="{self._engine}",finished_reason="{reason}",model_name="{model}"}} {float(number)}'
            for reason, number in self.finished.items()
        )
        for histogram in self._histograms:
            out.extend(histogram.lines(labels))
        pairs = ",".join(f'{key}="{_escaped(str(value))}"' for key, value in sorted(self._cache_config.items()))
        out.append("# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig")
        out.append("# TYPE vllm:cache_config_info gauge")
        out.append(f"vllm:cache_config_info{{{pairs}}} 1.0")
        return out


def text_of(lines: Iterable[str]) -> str:
    """Return an exposition of these lines."""
    return "\n".join(lines) + "\n"


def _token_buckets(most: int) -> Iterator[float]:
    """Yield 1, 2, 5, 10, 20, 50 and so on up to the longest request (vllm/v1/metrics/loggers.py, build_1_2_5_buckets)."""
    for power in count():
        for mantissa in _MANTISSAS:
            if mantissa * 10**power > most:
                return
            yield float(mantissa * 10**power)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
