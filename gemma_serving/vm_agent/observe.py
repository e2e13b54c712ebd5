"""Metrics of a machine: the collector's container next to the server, and the agent's own metrics.

Nothing here affects the server. A failure is logged and tried again.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from gemma_serving.contracts.collector import (
    AGENT_METRICS_PORT,
    COLLECTOR_METADATA_KEY,
    CONFIG_ARGUMENT,
    CONFIG_VARIABLE,
    CollectorSettings,
    parse_collector,
)
from gemma_serving.contracts.guest_attributes import PHASE_KEY
from gemma_serving.contracts.serving_document import API_KEY_VARIABLE, document_hash
from gemma_serving.vm_agent.base import CONTAINER, ServingError, SupersededError, environment_variable, log
from gemma_serving.vm_agent.bounded import BoundedServer, QuietHandler
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.cloud import CONNECTION_ERRORS, MetadataClient
from gemma_serving.vm_agent.confinement import HARDENED
from gemma_serving.vm_agent.containers import LOG_OPTIONS, docker_message, inspected, pull, run_command, secrets_option
from gemma_serving.vm_agent.follow import LatestDocument
from gemma_serving.vm_agent.publishing import PhasePublisher
from gemma_serving.vm_agent.running_server import KnownSecrets, RunEnd

COLLECTOR_NAME = f"{CONTAINER}-collector"
COLLECTOR_LABEL = f"{COLLECTOR_NAME}.hash"
COLLECTOR_MEMORY = "512m"
"""Limit of the collector's memory, so it cannot take the server's."""
COLLECTOR_USER = 10001
"""User of the image (google-built-opentelemetry-collector/Dockerfile.build), which writes no file. The collector needs
the machine's token to write the metrics, so the metadata guard does not apply to it."""
METRICS_PATH = "/metrics"


@dataclass
class Observer:
    """The collector that the metadata key names, and the agent's metrics that it scrapes."""

    metadata: MetadataClient
    publisher: PhasePublisher
    run_end: RunEnd
    secrets: KnownSecrets
    host: str = field(default_factory=lambda: environment_variable("GEMMA_SERVING_LOOPBACK", "127.0.0.1"))
    port: int = AGENT_METRICS_PORT
    retry_s: float = 60.0
    pull_limit_s: float = 900.0
    clock: AgentClock = CLOCK
    value: LatestDocument = field(init=False)
    _server: "BoundedServer | None" = None

    def __post_init__(self) -> None:
        self.value = LatestDocument(self.clock)

    def run(self) -> NoReturn:
        """Follow the value forever. After a failure, try again later."""
        done = 0
        while True:
            if self.value.wait_for_newer(done, self.retry_s) or (done and self._has_stopped()):
                version, text = self.value.get()
                if self.apply(version, text):
                    done = version
                else:
                    self.value.wait_for_newer(version, self.retry_s)

    def apply(self, version: int, text: "str | None") -> bool:
        """Start the container that the value names, or remove it. Return False if another attempt may succeed."""
        try:
            if text is None:
                self._remove()
            else:
                self._serve_metrics()
                self._start(parse_collector(text), document_hash(text), version)
        except (ValueError, KeyError, TypeError) as error:
            log(f"No metrics are collected: {error}.")
        except SupersededError:
            return True
        except (ServingError, *CONNECTION_ERRORS) as error:
            self.publisher.report(f"No metrics are collected: {error} Trying again in {self.retry_s:g} s.")
            return False
        return True

    def _start(self, settings: CollectorSettings, text_hash: str, version: int) -> None:
        """Start the container, unless it runs with this value. Raises ServingError and SupersededError."""
        status, _, started_hash = self._state()
        if (status, started_hash) == ("running", text_hash):
            return
        pull(
            self.metadata,
            settings.image,
            progress=lambda _: None,
            cancelled=lambda: self.value.is_newer_than(version),
            limit_s=self.pull_limit_s,
            clock=self.clock,
        )
        run_command(["docker", "rm", "-f", COLLECTOR_NAME])
        key = {} if settings.key is None else {API_KEY_VARIABLE: self.secrets.read(settings.key)}
        argv = ["docker", "run", "-d", f"--name={COLLECTOR_NAME}", *LOG_OPTIONS, "--restart=unless-stopped"]
        argv += ["--net=host", f"--memory={COLLECTOR_MEMORY}", f"--label={COLLECTOR_LABEL}={text_hash}"]
        argv += [*HARDENED, "--read-only", f"--user={COLLECTOR_USER}"]
        argv.append(f"--env={CONFIG_VARIABLE}={settings.config}")
        with secrets_option(key) as option:
            status, output = run_command([*argv, option, settings.image, CONFIG_ARGUMENT], timeout_s=300)
        if status:
            raise ServingError(f"docker run of the collector failed: {docker_message(output)}")
        log(f"The collector of {COLLECTOR_METADATA_KEY} {text_hash[:12]} has started.")

    def _has_stopped(self) -> bool:
        """Return whether the collector must be started again, because it has exited or stops after each start, which is reported.

        A daemon that was killed leaves its containers exited, whatever their restart policy (docker 20.10.24).
        """
        with suppress(ServingError):
            status, exit_code, _ = self._state()
            if status == "restarting":
                self.publisher.report(f"The collector stops after each start, with exit code {exit_code}.")
            return status not in {"", "running"}
        return False

    def _state(self) -> "tuple[str, str, str]":
        """Return the collector's status, exit code and hash, empty without one. Raises ServingError.

        `State.Running` is also true between two starts of a collector that stops after each.
        """
        template = '{{.State.Status}} {{.State.ExitCode}} {{index .Config.Labels "' + COLLECTOR_LABEL + '"}}'
        status, exit_code, text_hash = [*inspected(COLLECTOR_NAME, template).split(" "), "", ""][:3]
        return status, exit_code, text_hash

    def _remove(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        run_command(["docker", "rm", "-f", COLLECTOR_NAME])

    def _serve_metrics(self) -> None:
        """Serve the agent's metrics, if they are not served yet. Raises OSError if the port is in use."""
        if self._server is not None:
            return
        observer = self

        class MetricsHandler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802 - the base class's name
                body = observer.exposition().encode() if self.path == METRICS_PATH else b""
                self.answer(200 if body else 404, body, [("Content-Type", "text/plain; version=0.0.4")])

        self._server = BoundedServer((self.host, self.port), MetricsHandler)

    def exposition(self) -> str:
        """Return the agent's metrics in Prometheus' text format."""
        published, ends_at_s = dict(self.publisher.published), self.run_end.ends_at_s
        lines = [
            "# TYPE gemma_serving_phase gauge",
            f'gemma_serving_phase{{phase="{published.get(PHASE_KEY, "")}"}} 1',
            "# TYPE gemma_serving_restarts_total counter",
            f"gemma_serving_restarts_total {self.publisher.restarts}",
        ]
        if ends_at_s is not None:
            lines += [
                "# TYPE gemma_serving_deadline_timestamp_seconds gauge",
                f"gemma_serving_deadline_timestamp_seconds {ends_at_s:.3f}",
            ]
        return "\n".join([*lines, ""])
