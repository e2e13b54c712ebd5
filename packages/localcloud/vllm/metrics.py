"""vLLM's metrics that the project reads, under its names, labels and buckets. As in vLLM, prometheus-client counts and writes them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.process_collector import ProcessCollector

from localcloud.json_values import packaged

_TABLES: Final = packaged("localcloud.vllm", "metrics.json")
_FINISHED: Final = ("stop", "length", "abort", "error", "repetition")
_LABELS: Final = ("model_name", "engine")
_UNCOUNTED: Final = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
"""Source: vllm/entrypoints/serve/instrumentator/metrics.py, `excluded_handlers`."""
_DURATION_S: Final = (0.1, 0.5, 1.0)
"""Buckets of the histogram by handler (prometheus_fastapi_instrumentator/metrics.py, `latency_lowr_buckets`)."""
_NO_HANDLER: Final = "none"
"""Handler of all paths that match no route."""

disable_created_metrics()


class Metrics:
    """The metrics page of a server, by vLLM's names without `vllm:` and `_total`. Each replica states its memory; the first has the load of all.

    HTTP requests are counted by handler, method and class of status, as prometheus-fastapi-instrumentator does. Requests that a middleware
    or the API key refuses are not counted, because vLLM adds both outside the counter, and neither are probes.
    """

    def __init__(
        self,
        model_name: str,
        cache_config: Mapping[str, object],
        *,
        has_drafts: bool = False,
        max_loras: int = 0,
        replicas: int = 1,
    ) -> None:
        """Create the page. `max_loras`: adapters of one batch, 0 without any."""
        self._registry = registry = CollectorRegistry()
        self._labels = (model_name, "0")
        gauges: dict[str, list[str]] = _TABLES["gauges"]
        counters: dict[str, list[str]] = {**_TABLES["counters"], **(_TABLES["speculation"] if has_drafts else {})}
        histograms: dict[str, list[str]] = _TABLES["histograms"]
        self._gauges = {
            name: Gauge(f"vllm:{name}", text, (*_LABELS, *more), registry=registry)
            for name, (text, *more) in gauges.items()
        }
        self._counters = {
            name: Counter(f"vllm:{name}", text, (*_LABELS, *more), registry=registry)
            for name, (text, *more) in counters.items()
        }
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, _LABELS, buckets=_TABLES["buckets"][kind], registry=registry)
            for name, (kind, text) in histograms.items()
        }
        config = Gauge(
            "vllm:cache_config_info", _TABLES["cache_config"], sorted({*cache_config, "engine"}), registry=registry
        )
        for rank in range(replicas):
            config.labels(**{**cache_config, "engine": rank}).set(1)
        if replicas == 1:
            # Several API servers share a registry without figures of a process (prometheus_client, multiprocess mode).
            ProcessCollector(registry=registry)
        handled = ("handler", "method")
        self._requests = Counter("http_requests", _TABLES["requests"], (*handled, "status"), registry=registry)
        self._durations = Histogram(
            "http_request_duration_seconds", _TABLES["durations"], handled, buckets=_DURATION_S, registry=registry
        )
        self._max_loras, by_adapter = max_loras, ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        if max_loras:
            self._adapters = Gauge("vllm:lora_requests_info", _TABLES["adapters"], by_adapter, registry=registry)
        # The series that are on the page before the first request.
        for name in self._counters.keys() - {"request_success"}:
            self.count(name, 0)
        for reason in _FINISHED:
            self.count("request_success", 0, reason)
        for family in self._histograms.values():
            family.labels(*self._labels)

    def count_request(self, handler: str | None, method: str, status: int, duration_s: float) -> None:
        """Count a finished HTTP request. `handler` is the route's path, None if no route matches."""
        if handler in _UNCOUNTED:
            return
        name = handler or _NO_HANDLER
        self._requests.labels(name, method, f"{status // 100}xx").inc()
        self._durations.labels(name, method).observe(duration_s)

    def count_drafts(self, drafts: float, proposed: int, accepted: float) -> None:
        """Count drafts of speculative decoding by their mean."""
        if proposed and drafts:
            self.count("spec_decode_num_drafts", drafts)
            self.count("spec_decode_num_draft_tokens", drafts * proposed)
            self.count("spec_decode_num_accepted_tokens", drafts * accepted)

    def count(self, name: str, amount: float = 1, *more: str) -> None:
        """Increment a counter. `more` are the values of its further labels."""
        self._counters[name].labels(*self._labels, *more).inc(amount)

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Observe a value `times` times in a histogram."""
        series = self._histograms[name].labels(*self._labels)
        for _ in range(times):
            series.observe(value)

    def show(self, name: str, value: Callable[[], float], *more: str) -> None:
        """Let a gauge call `value` for each page. `more` are the values of its further labels."""
        self._gauges[name].labels(*self._labels, *more).set_function(value)

    def show_adapters(self, waiting: Iterable[str], running: Iterable[str]) -> None:
        """Name the adapters of the requests, as of now."""
        if self._max_loras:
            named = [",".join(dict.fromkeys(filter(None, names))) for names in (waiting, running)]
            self._adapters.labels(self._max_loras, *named).set_to_current_time()

    def text(self) -> str:
        """Return the page."""
        return generate_latest(self._registry).decode()
