"""The running server: its form, secrets, health, metrics, idle time, and stop before the run expires."""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from http import HTTPStatus

from gemma_serving.contracts.guest_attributes import (
    CONFINED,
    CONTAINER_KEY,
    ENDING,
    ENDS_AT_KEY,
    EXPOSED,
    IDLE_FROM_S,
    IDLE_SINCE_KEY,
    NOT_IDLE,
    PRIVILEGED,
    SERVING_HASH_KEY,
)
from gemma_serving.contracts.rollout import ENDS_AT_METADATA_KEY
from gemma_serving.contracts.serving_document import API_KEY_VARIABLE, ServingDocument
from gemma_serving.vm_agent.base import ServingError, environment_variable, log
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.cloud import CONNECTION_ERRORS, DIRECT, MetadataClient, read_secret
from gemma_serving.vm_agent.confinement import Container, accelerator_devices, confined, is_device_error, privileged
from gemma_serving.vm_agent.containers import ContainerState, container_log, container_state, remove_container
from gemma_serving.vm_agent.follow import LatestDocument
from gemma_serving.vm_agent.metadata_guard import MetadataGuard
from gemma_serving.vm_agent.publishing import PhasePublisher
from gemma_serving.vm_agent.stored_state import Assignment, StoredState

RUNNING_METRIC = "vllm:num_requests_running"
IDLE_METRICS = (RUNNING_METRIC, "vllm:num_requests_waiting")
ANSWERED_METRIC = "vllm:request_success_total"
"""vLLM's counter of finished requests since its start, by `finished_reason`."""
ANSWERED_REASONS = ('finished_reason="stop"', 'finished_reason="length"')
ENDING_LEAD_S = 60
"""Time between the stop of the server and the run expiry. The drain ends before it."""
RUN_ENDS = "The run is about to expire."
SET_PRIVILEGED = "set tpu.container: privileged"


@dataclass
class ContainerForm:
    """Selector of the next container's form."""

    latest: LatestDocument
    publisher: PhasePublisher
    stored: StoredState
    guard: MetadataGuard
    started: "Container | None" = None

    def choose(self, assignment: Assignment) -> Container:
        """Return the form of the next container. Raises ServingError if a confined one has no device."""
        shm_size_gib, devices = assignment.document.shm_size_gib, accelerator_devices()
        if self.latest.limits().is_privileged:
            return privileged(shm_size_gib)
        if not devices:
            raise ServingError(f"No accelerator device was found below /dev: {SET_PRIVILEGED}.", retry=False)
        options, exposure = self.guard.options(assignment.document)
        form = confined(devices, shm_size_gib)
        return replace(
            form, options=(*form.options, *options), label=EXPOSED if exposure else CONFINED, reason=exposure
        )

    def explained(self, problem: ServingError, *, was_ready: bool) -> ServingError:
        """Return the error, with the setting to change if a confined server could not use a device.

        It is the last attempt on a machine that never had a ready server.
        """
        if self.started is None or self.started.label == PRIVILEGED or was_ready:
            return problem
        try:
            state = container_state()
        except ServingError:
            return problem
        is_running = state is not None and state.running
        if is_running or not is_device_error([*container_log(), str(problem)]):
            return problem
        text = f"{problem} The confined server could not use the accelerator: {SET_PRIVILEGED}."
        return ServingError(text, problem.log_lines, retry=bool(self.stored.documents()))

    def adopt(self, state: ContainerState) -> None:
        """Publish the form of a container that an earlier agent started."""
        label = state.form if state.form in {CONFINED, EXPOSED} else PRIVILEGED
        found = Container((), label, "" if label == CONFINED else "started before this agent")
        self.started = None if label == PRIVILEGED else found
        if label == CONFINED:
            self.guard.keep()
        self.publisher.set_fact(CONTAINER_KEY, found.words)


@dataclass
class KnownSecrets:
    """Values read by this agent, which the publisher masks, by version."""

    metadata: MetadataClient
    publisher: PhasePublisher
    _values: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    def learn(self, document: ServingDocument) -> None:
        """Read the secrets of a server that an earlier agent started. Raises ServingError."""
        for version in set(document.secret_environment.values()) - set(self._values):
            self.read(version)

    def has_all(self, document: ServingDocument) -> bool:
        """Return whether each secret of a document was read, so its server's log can be masked."""
        return set(document.secret_environment.values()) <= set(self._values)

    def read(self, version: str, *, is_back: bool = False, is_api_key: bool = False) -> str:
        """Return a secret's value and mask it from now on. For a rollback, an earlier value is sufficient.

        An API key is an exception: if Secret Manager rejects it, it was revoked.
        """
        try:
            value = read_secret(self.metadata, version)
        except ServingError as error:
            is_refused = HTTPStatus.BAD_REQUEST <= error.status < HTTPStatus.INTERNAL_SERVER_ERROR
            if not is_back or version not in self._values or (is_api_key and is_refused):
                raise
            return self._values[version]
        self.publisher.secrets.add(value)
        self._values[version] = value
        return value

    def key_header(self, document: ServingDocument) -> "dict[str, str]":
        """Return the header with the server's API key, or none if it has no key or Secret Manager does not return it."""
        version = document.secret_environment.get(API_KEY_VARIABLE)
        if version is not None and version not in self._values:
            with suppress(ServingError):
                self.learn(document)
        key = self._values.get(version or "")
        return {} if key is None else {"Authorization": f"Bearer {key}"}


@dataclass(frozen=True)
class ServerLoad:
    """Requests of the server: running or waiting now, and since its start finished or answered."""

    active: float
    finished: float
    answered: float = 0.0


@dataclass
class RunningServer:
    """Client of the server on this machine."""

    stored: StoredState
    latest: LatestDocument
    secrets: KnownSecrets
    loopback: str = field(default_factory=lambda: environment_variable("GEMMA_SERVING_LOOPBACK", "127.0.0.1"))
    clock: AgentClock = CLOCK

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

        Return immediately for a server that drains on its own.
        """
        served = self.stored.find(state.text_hash)
        if state.drain_s or served is None:
            return
        deadline = self.clock.now() + limit_s
        while self.clock.now() < deadline and self.requests(served.document):
            if version is not None and self.latest.is_newer_than(version):
                return
            self.clock.sleep(0.2)

    def requests(self, document: ServingDocument) -> float:
        """Return the number of running and waiting requests, or 0 if the server does not report it."""
        return sum(value for line, value in self._metrics(document) if line.startswith(IDLE_METRICS))

    def load(self, document: ServingDocument) -> "ServerLoad | None":
        """Return the server's load, or None if it does not report it."""
        found = self._metrics(document)
        ended = {line: value for line, value in found if line.startswith(ANSWERED_METRIC)}
        if not ended or not any(line.startswith(RUNNING_METRIC) for line, _ in found):
            return None
        active = sum(value for line, value in found if line.startswith(IDLE_METRICS))
        answered = sum(ended[line] for line in ended if any(reason in line for reason in ANSWERED_REASONS))
        return ServerLoad(active, sum(ended.values()), answered)

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


@dataclass
class IdleTime:
    """Publisher of the time since which the ready server has had no request.

    A request that ran between two readings changed the counter of finished requests.
    """

    publisher: PhasePublisher
    now: Callable[[], float] = time.time
    poll_s: float = 15.0
    _since_s: float = 0.0
    _finished: "float | None" = None
    _read_at_s: float = 0.0

    def begin(self) -> None:
        """Start over because a server is ready. It is busy until it was idle for `IDLE_FROM_S`."""
        self._since_s = self.now()
        self._finished = None
        self._read_at_s = 0.0
        self.publisher.set_fact(IDLE_SINCE_KEY, NOT_IDLE)

    def read(self, load: "Callable[[], ServerLoad | None]") -> None:
        """Read the load and publish the idle time, at most once in `poll_s`."""
        now_s = self.now()
        if 0 <= now_s - self._read_at_s < self.poll_s:
            return
        self._read_at_s = now_s
        self.publisher.set_fact(IDLE_SINCE_KEY, self._answer(load(), now_s))

    def _answer(self, load: "ServerLoad | None", now_s: float) -> str:
        if load is None:
            return ""
        if load.active or load.finished != self._finished:
            self._since_s, self._finished = now_s, load.finished
        if now_s - self._since_s < IDLE_FROM_S:
            return NOT_IDLE
        return datetime.fromtimestamp(self._since_s, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Return an RFC 3339 time in whole seconds since 1970. Raises ValueError."""
    return datetime.fromisoformat(re.sub(r"\.\d+", "", text.strip()).replace("Z", "+00:00")).timestamp()


@dataclass
class RunEnd:
    """Expiry of the run, if the machine has one."""

    latest: LatestDocument
    publisher: PhasePublisher
    server: RunningServer
    now: Callable[[], float] = time.time
    ends_at_s: "float | None" = None
    """Time at which Google deletes the machine, in seconds since 1970; None if unknown."""

    def set(self, text: "str | None") -> None:
        """Store the time at which Google deletes the machine, and publish it."""
        try:
            self.ends_at_s = parse_time(text) if text else None
        except ValueError as error:
            log(f"{ENDS_AT_METADATA_KEY} is not a valid time: {error}.")
            return
        self.publisher.set_fact(ENDS_AT_KEY, text or "")

    def is_soon(self) -> bool:
        """Return whether no server may start any more."""
        lead_s = ENDING_LEAD_S + self.latest.limits().drain_s
        return self.ends_at_s is not None and self.now() > self.ends_at_s - lead_s

    def end_server(self, text_hash: str) -> None:
        """Drain running requests, and stop the server before Google deletes the machine."""
        with_end = datetime.fromtimestamp(self.ends_at_s or 0.0, timezone.utc)
        self.publisher.publish(ENDING, text_hash, f"Google will delete the TPU VM at {with_end:%Y-%m-%d %H:%M:%S} UTC")
        with suppress(ServingError):  # docker does not respond
            state = container_state()
            if state and state.running:
                self.server.wait_until_idle(state, self.latest.limits().drain_s)
                remove_container()
        self.publisher.set_fact(SERVING_HASH_KEY, "")
