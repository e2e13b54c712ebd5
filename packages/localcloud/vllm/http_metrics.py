"""HTTP metrics, as vLLM's server adds them with prometheus-fastapi-instrumentator, and the start of the process.

Requests that a middleware or the API key refuses are not counted, because vLLM adds both outside the counter, and neither are probes.
"""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from localcloud.vllm.histograms import Histogram

_UNCOUNTED: Final = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
"""Source: vllm/entrypoints/serve/instrumentator/metrics.py, `excluded_handlers`."""
_DURATION_S: Final = (0.1, 0.5, 1.0)
"""Buckets of the histogram by handler (prometheus_fastapi_instrumentator/metrics.py, `latency_lowr_buckets`)."""
_NO_HANDLER: Final = "none"
"""Handler of all paths that match no route."""


class HttpMetrics:
    """Requests by handler, method and class of status, and their durations."""

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
            yield from self._process_lines()
        yield from self._request_lines()

    def _process_lines(self) -> Iterator[str]:
        yield "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds."
        yield "# TYPE process_start_time_seconds gauge"
        yield f"process_start_time_seconds {self._started_at:.2f}"

    def _request_lines(self) -> Iterator[str]:
        yield "# HELP http_requests_total Total number of requests by method, status and handler."
        yield "# TYPE http_requests_total counter"
        for (handler, method, status), number in self._requests.items():
            yield f'http_requests_total{{handler="{handler}",method="{method}",status="{status}"}} {float(number)}'
        yield "# HELP http_request_duration_seconds Latency with only few buckets by handler."
        yield "# TYPE http_request_duration_seconds histogram"
        for (handler, method), durations in self._durations.items():
            yield from durations.samples(f'handler="{handler}",method="{method}"')
