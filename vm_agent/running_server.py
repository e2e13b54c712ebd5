"""Client of the running server: its health, and its request metrics."""

import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from contracts.serving_document import ServingDocument
from vm_agent.base import environment_variable
from vm_agent.cloud import CONNECTION_ERRORS, DIRECT
from vm_agent.containers import ContainerState
from vm_agent.follow import LatestDocument
from vm_agent.kept import KeptState
from vm_agent.known_secrets import KnownSecrets

RUNNING_METRIC = "vllm:num_requests_running"
IDLE_METRICS = (RUNNING_METRIC, "vllm:num_requests_waiting")
ANSWERED_METRIC = "vllm:request_success_total"
"""vLLM's counter of finished requests since its start, by `finished_reason`, including aborted and failed ones."""
ANSWERED_REASONS = ('finished_reason="stop"', 'finished_reason="length"')


@dataclass(frozen=True)
class ServerLoad:
    """Load of the server: requests that are running or waiting now, and requests finished since its start, for any reason."""

    active: float
    finished: float


@dataclass
class RunningServer:
    """Client of the server on this machine."""

    kept: KeptState
    latest: LatestDocument
    secrets: KnownSecrets
    loopback: str = field(default_factory=lambda: environment_variable("GEMMA_SERVING_LOOPBACK", "127.0.0.1"))

    def health_problem(self, port: int) -> str:
        """Return the error of the server's /health, or an empty string if it is healthy."""
        try:
            with DIRECT.open(f"http://{self.loopback}:{port}/health", timeout=5):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return f"status {error.code}"
        except CONNECTION_ERRORS as error:
            return str(getattr(error, "reason", error))

    def wait_until_idle(self, state: ContainerState, limit_s: float, version: "int | None" = None) -> None:
        """Wait at most `limit_s` until no request is running or waiting, or until a version newer than this one exists.

        Returns immediately for a server that drains on its own.
        """
        served = self.kept.find(state.text_hash)
        if state.drain_s or served is None:
            return
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self.requests(served.document):
            if version is not None and self.latest.is_newer_than(version):
                return
            time.sleep(0.2)

    def requests(self, document: ServingDocument) -> float:
        """Return the number of running and waiting requests, or 0 if the server does not report it."""
        return sum(value for line, value in self._metrics(document) if line.startswith(IDLE_METRICS))

    def answered(self, document: ServingDocument) -> "float | None":
        """Return the number of requests that the server has completed since its start, or None if it does not report it."""
        found = [(line, value) for line, value in self._metrics(document) if line.startswith(ANSWERED_METRIC)]
        answered = sum(value for line, value in found if any(reason in line for reason in ANSWERED_REASONS))
        return answered if found else None

    def load(self, document: ServingDocument) -> "ServerLoad | None":
        """Return the server's load, or None if it does not report it."""
        found = self._metrics(document)
        finished = [value for line, value in found if line.startswith(ANSWERED_METRIC)]
        if not finished or not any(line.startswith(RUNNING_METRIC) for line, _ in found):
            return None
        return ServerLoad(sum(value for line, value in found if line.startswith(IDLE_METRICS)), sum(finished))

    def _metrics(self, document: ServingDocument) -> "list[tuple[str, float]]":
        """Return the server's metrics with their values, or none if it does not respond."""
        url = f"http://{self.loopback}:{document.port}/metrics"
        asked = urllib.request.Request(url, headers=self.secrets.key_header(document))
        try:
            with DIRECT.open(asked, timeout=5) as response:
                lines = response.read().decode(errors="replace").splitlines()
            return [(line, float(line.rpartition(" ")[2])) for line in lines if line.startswith("vllm:")]
        except CONNECTION_ERRORS:
            return []
