"""The engines of one server: with data parallelism several behind one port, each with its own KV cache, queue and metrics."""

from collections.abc import Sequence as Engines
from itertools import count
from typing import Final

from localcloud.vllm.engine import Sequence, SimulatedEngine
from localcloud.vllm.http_metrics import HttpMetrics
from localcloud.vllm.metrics import merged, text_of

_WAITING_WEIGHT: Final = 4
"""A waiting request counts as much as four running ones (vLLM v1/engine/core_client.py, DPLBAsyncMPClient)."""


class EngineGroup:
    """Sends each request to the least loaded engine. Of equally loaded ones the next in turn gets it, as vLLM has an API server for each engine."""

    def __init__(self, engines: Engines[SimulatedEngine]) -> None:
        self._engines = tuple(engines)
        self._turns = count()

    @property
    def requests(self) -> int:
        """Return the number of running and waiting requests of all engines."""
        return sum(engine.running + engine.waiting for engine in self._engines)

    @property
    def http(self) -> HttpMetrics:
        """Return the counters of HTTP requests, which belong to no engine."""
        return self._engines[0].http

    def metrics_text(self) -> str:
        """Return the metrics in Prometheus text: the engines differ in the label `engine`."""
        lines = merged(engine.metrics_lines() for engine in self._engines)
        return text_of([*lines, *self.http.lines(api_servers=len(self._engines))])

    def submit(self, sequence: Sequence) -> SimulatedEngine:
        """Queue a sequence, and return its engine."""
        turn = next(self._turns) % len(self._engines)
        in_turn = (*self._engines[turn:], *self._engines[:turn])
        chosen = min(in_turn, key=lambda engine: _WAITING_WEIGHT * engine.waiting + engine.running)
        chosen.submit(sequence)
        return chosen
