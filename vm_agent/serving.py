"""The agent: follows the document, serves it, restarts a server that ends, and goes back to the document before a bad one."""

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from http import HTTPStatus
from typing import NoReturn

from contracts.guest_attributes import (
    ARCHIVES_KEY,
    CONFINED,
    CONTAINER_KEY,
    ENDING,
    ENDS_AT_KEY,
    EXPOSED,
    FAILED,
    FETCHING_WEIGHTS,
    FORMER_HASH_KEY,
    LOADING,
    PAUSE_BEGAN_KEY,
    PAUSE_ENDED_KEY,
    PRIVILEGED,
    PULLING_IMAGE,
    READY,
    RESTORING,
    RETRYING,
    SERVING_HASH_KEY,
    STARTING,
)
from contracts.rollout import ENDS_AT_METADATA_KEY, ROLLOUT_METADATA_KEY, RolloutLimits, parse_rollout
from contracts.serving_document import (
    API_KEY_VARIABLE,
    DOCUMENT_METADATA_KEY,
    DocumentError,
    ServingDocument,
    api_key_of,
    document_hash,
    parse_document,
    secrets_hash,
)
from vm_agent.base import ServingError, SupersededError, environment_variable, log
from vm_agent.cloud import CONNECTION_ERRORS, DIRECT, MetadataClient, near_image, read_secret
from vm_agent.compile_cache import CompiledPrograms
from vm_agent.confinement import (
    KILLED_EXIT_CODE,
    USAGE_EXIT_CODE,
    Container,
    accelerator_devices,
    confined,
    container_words,
    device_problem,
    privileged,
)
from vm_agent.containers import (
    ContainerState,
    container_log,
    container_state,
    pull,
    remove_container,
    remove_image,
    remove_other_models,
    start_container,
)
from vm_agent.kept import IMAGE_KIND, FailedChange, GoodDocument, KeptState, fetched_by, limits_name
from vm_agent.metadata_guard import MetadataGuard
from vm_agent.prefetch import HubFetch
from vm_agent.publishing import LogFollower, PhasePublisher, utc_now
from vm_agent.shipping import LogShipper
from vm_agent.weights import WeightsCopy, remove_copy

ENDING_LEAD_S = 60
"""A server stops this long before the end of the run duration, and its drain before that."""
RUN_ENDS = "The run duration ends."
IDLE_METRICS = ("vllm:num_requests_running", "vllm:num_requests_waiting")
ANSWERED_METRIC = "vllm:request_success_total"
"""vLLM's counter of finished requests since its start, by `finished_reason`: also of those that were aborted or failed."""
ANSWERED_REASONS = ('finished_reason="stop"', 'finished_reason="length"')
PROBATION_REQUESTS = 100
"""Answers after which a document has passed its probation. Several times what a run of the project's own smoke checks sends, whose prompts are
short: the first long prompt is what usually ends a server that became ready, so callers' prompts have to be among the answers."""
PROBATION_S = 1800.0
"""Seconds after which a document has passed its probation with fewer answers, if there was one. A judgement, not a measurement: long beside the
52 s of pauses between four ends, and short beside the hours of a run, in which the former document's image and weights keep their room."""


@dataclass
class LatestDocument:
    """The newest text of the document, with its limits. Threads set it, the agent reads it. Of rapid changes only the last one counts."""

    _text: str | None = None
    _limits: str | None = None
    _parsed: RolloutLimits = field(default_factory=RolloutLimits)
    _version: int = 0
    _given_up: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def set(self, text: str | None, limits: str | None = None) -> None:
        """Store a text; None means that the metadata key is absent. The same text again is no new version."""
        with self._changed:
            if self._version and text == self._text:
                self.set_limits(limits)
                return
            self._text = text
            self._take_limits(limits)
            self._version += 1
            self._changed.notify_all()

    def set_limits(self, limits: str | None) -> None:
        """Store the limits of the document. They begin a new version only if the present one was given up: then it is tried again."""
        with self._changed:
            if limits == self._limits:
                return
            self._take_limits(limits)
            if self._given_up == self._version:
                self._version += 1
                self._changed.notify_all()

    def _take_limits(self, text: str | None) -> None:
        self._limits = text
        try:
            self._parsed = parse_rollout(text)
        except ValueError as error:
            log(f"The limits of the change count as absent: {error}.")
            self._parsed = RolloutLimits()

    def give_up(self, version: int) -> None:
        """Note that this version is not tried any more."""
        with self._changed:
            self._given_up = version

    def get(self) -> tuple[int, str | None]:
        """Return the newest version's number and text."""
        with self._changed:
            return self._version, self._text

    def limits_text(self) -> str | None:
        """Return the text of the limits; None if there are none."""
        with self._changed:
            return self._limits

    def limits(self) -> RolloutLimits:
        """Return the limits; the defaults if they cannot be read."""
        with self._changed:
            return self._parsed

    def is_newer_than(self, version: int) -> bool:
        """Whether there is a newer version than this one."""
        return self.wait_for_newer(version, 0)

    def wait_for_newer(self, version: int, timeout_s: float) -> bool:
        """Wait until there is a newer version than this one. Return False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version > version, timeout_s)


def follow_document(metadata: MetadataClient, latest: LatestDocument, *, retry_s: float = 2.0) -> NoReturn:
    """Follow the document's metadata key for ever with waiting GETs, and read its limits with it."""
    etag: str | None = None
    while True:
        try:
            text, new = metadata.attribute(DOCUMENT_METADATA_KEY, etag=etag)
            limits = None if text is None else metadata.attribute(ROLLOUT_METADATA_KEY)[0]
            latest.set(text, limits)
            etag = new
            if text is not None:
                continue
        except CONNECTION_ERRORS as error:
            log(f"The metadata server did not answer: {error}")
        time.sleep(retry_s)


def follow_key(
    metadata: MetadataClient, key: str, tell: Callable[[str | None], None], *, retry_s: float = 15.0
) -> NoReturn:
    """Follow another metadata key for ever."""
    etag: str | None = None
    while True:
        try:
            text, etag = metadata.attribute(key, etag=etag)
            tell(text)
            if text is not None:
                continue
        except CONNECTION_ERRORS as error:
            log(f"The metadata server did not answer: {error}")
        time.sleep(retry_s)


def parse_time(text: str) -> float:
    """Return an RFC 3339 time in seconds since 1970. Raises ValueError."""
    whole, _, fraction = text.strip().rstrip("Z").partition(".")
    parsed = datetime.fromisoformat(whole)
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=timezone.utc)
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    return parsed.timestamp() + float(f"0.{digits or 0}")


@dataclass(frozen=True)
class Assignment:
    """One document to serve, with its version's number and the hash of its text.

    `failed` is the change in whose place the last good document serves; None if the document is the one that was asked for.
    """

    version: int
    text_hash: str
    document: ServingDocument
    text: str
    failed: "FailedChange | None" = None

    @property
    def asked_hash(self) -> str:
        """Hash of the document that was asked for."""
        return self.failed.text_hash if self.failed else self.text_hash


@dataclass
class Agent:
    """Serves the newest document, one at a time, until a newer one arrives."""

    metadata: MetadataClient
    latest: LatestDocument
    publisher: PhasePublisher
    shipper: "LogShipper | None" = None
    """Gets the server's lines; None keeps them on the machine."""
    loopback: str = field(default_factory=lambda: environment_variable("GEMMA_SERVING_LOOPBACK", "127.0.0.1"))
    kept: KeptState = field(default_factory=KeptState)
    """What survives a restart of the agent."""
    restart_delays_s: tuple[float, ...] = (2, 10, 40, 120)
    """Delays before each restart of a server that ended. After the last one the document has failed."""
    prepare_delays_s: tuple[float, ...] = (2, 10)
    """The same for a changed document that cannot be prepared, while the old server answers."""
    trial_delays_s: tuple[float, ...] = (2,)
    """The same for a changed document whose server ends before it was ready: nothing answers, so the last good one is soon started again."""
    probation_delays_s: tuple[float, ...] = (2, 10, 40)
    """The same for a document on probation. The fourth end of its server is the last one."""
    probation_requests: float = PROBATION_REQUESTS
    probation_s: float = PROBATION_S
    denied_budget_s: float = 600
    """How long a refused permission does not count as a failed attempt. Google says that a grant can take seven minutes or more."""
    denied_delay_s: float = 15
    steady_s: float = 600
    """After having been ready for this long, a server may be restarted from the first delay on again."""
    health_lost_s: float = 120
    """A server that was ready is restarted if /health does not answer for this long."""
    health_poll_s: float = 2.0
    ends_at_s: "float | None" = None
    """When Google deletes the machine, in seconds since 1970; None if nobody said."""
    _known_secrets: dict[str, str] = field(default_factory=dict[str, str])
    """Values that the publisher masks, by their versions."""
    _trial_began: float = 0.0
    _ready_at: "float | None" = None
    _started: "Container | None" = None
    """The container that the present attempt has started."""

    programs: CompiledPrograms = field(init=False)
    guard: MetadataGuard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = MetadataGuard(self.metadata)
        self.programs = CompiledPrograms(
            self.metadata,
            self.publisher.secrets,
            self.publisher.remark,
            publish_unsigned=lambda text: self.publisher.set_fact(ARCHIVES_KEY, self.publisher.mask(text)),
        )

    def set_end(self, text: "str | None") -> None:
        """Take the time at which Google deletes the machine, and publish it."""
        try:
            self.ends_at_s = parse_time(text) if text else None
        except ValueError as error:
            log(f"{ENDS_AT_METADATA_KEY} is no time: {error}.")
            return
        self.publisher.set_fact(ENDS_AT_KEY, text or "")

    def run(self) -> NoReturn:
        """Serve for ever."""
        version = 0
        while True:
            if not self.latest.wait_for_newer(version, self.publisher.progress_s):
                self.publisher.publish_again()
                continue
            version, text = self.latest.get()
            try:
                self.serve(version, text)
            except SupersededError:
                log("A newer document has arrived.")
                self.kept.forget_trial()

    def serve(self, version: int, text: str | None) -> None:
        """Serve one document. Return if no further attempt can succeed.

        Raises:
            SupersededError: a newer document has arrived.
        """
        if text is None:
            self.publisher.publish(STARTING, "", f"waiting for the metadata key {DOCUMENT_METADATA_KEY}")
            return
        text_hash, failed = document_hash(text), self.kept.failed
        if self._ends_soon():
            self._end(text_hash)
            return
        if failed and (failed.text_hash, failed.limits) == (text_hash, limits_name(self.latest.limits_text())):
            self._go_back(version, failed)  # it failed before this agent started
            return
        self._forget_pause(text_hash)
        self.publisher.publish(STARTING, text_hash)
        try:
            document = parse_document(text)
        except DocumentError as error:
            self._give_up(version, text, str(error))
            return
        near = replace(document, image=near_image(self.metadata, document.image))
        self._serve_with_restarts(Assignment(version, text_hash, near, text))

    def _give_up(self, version: int, text: str, detail: str) -> None:
        """Serve the document before in place of one that failed, with the API key of that one; without one, publish that nothing serves."""
        text_hash = document_hash(text)
        self.latest.give_up(version)
        self.kept.end_probation(text_hash)
        back = self.kept.back
        if back is None or back.text_hash == text_hash:
            self.publisher.publish(FAILED, text_hash, detail)
            return
        limits = limits_name(self.latest.limits_text())
        failed = FailedChange(text_hash, limits, self.publisher.remove_secrets(f"{detail}{self._rotate_api_key(text)}"))
        self.kept.keep_failed(failed)
        self._go_back(version, failed)

    def _rotate_api_key(self, text: str) -> str:
        """Give the documents to go back to the API key of one that failed. Return a sentence if their own was another one."""
        version = api_key_of(text)
        if version is None or not self.kept.has_other_api_key(version):
            return ""
        try:
            self._read_secret(version)
        except ServingError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return f" {version} does not exist, so the API key was not rotated: the one of before keeps working."
        self.kept.rotate_api_key(version)
        return f" The document before serves with the new API key, {version}."

    def _go_back(self, version: int, failed: FailedChange) -> None:
        self.latest.give_up(version)
        back = self.kept.back
        if back is None:
            self.publisher.publish(FAILED, failed.text_hash, failed.detail)
            return
        log(f"Document {failed.text_hash[:12]} failed: the one before, {back.text_hash[:12]}, serves.")
        self._serve_with_restarts(Assignment(version, back.text_hash, back.document, back.text, failed))

    def _publish(self, assignment: Assignment, phase: str, detail: str = "") -> None:
        """Publish a phase. While the last good document serves in place of a failed one, the phase is about the failed one."""
        failed = assignment.failed
        if failed is None:
            self.publisher.publish(phase, assignment.text_hash, detail)
        else:
            self.publisher.publish(FAILED if phase == READY else RESTORING, failed.text_hash, failed.detail)

    def _is_trial(self, assignment: Assignment) -> bool:
        """Whether the document was never ready and another one was: then it can be rolled back."""
        back = self.kept.back
        return assignment.failed is None and back is not None and self.kept.find(assignment.text_hash) is None

    def _is_on_probation(self, assignment: Assignment) -> bool:
        """Whether the document was ready, and has not earned yet to be the one to go back to."""
        probation = self.kept.probation
        return probation is not None and probation.ready.text_hash == assignment.text_hash

    def _earlier_starts(self, assignment: Assignment) -> int:
        """Return how often the server of a document on trial or probation was started, also by agents before this one."""
        if self.kept.probation is not None and self._is_on_probation(assignment):
            return self.kept.probation.starts
        limits = limits_name(self.latest.limits_text())
        return self.kept.starts_of(assignment.text_hash, limits) if self._is_trial(assignment) else 0

    def _restarts(self, assignment: Assignment) -> int:
        """Return how many of the allowed restarts are used. On probation the start that became ready is none of them."""
        return self._earlier_starts(assignment) - (1 if self._is_on_probation(assignment) else 0)

    def _is_over_budget(self, assignment: Assignment) -> bool:
        limit_s = self.latest.limits().ready_timeout_s
        can_go_back = self._is_trial(assignment) or self._is_on_probation(assignment)
        return can_go_back and time.monotonic() - self._trial_began > limit_s

    def _over_budget(self) -> ServingError:
        limit_s = self.latest.limits().ready_timeout_s
        return ServingError(f"The server was not ready within {limit_s:.0f} s (tpu.readyTimeout).", retry=False)

    def _serve_with_restarts(self, assignment: Assignment) -> None:
        restarts, first = self._restarts(assignment), time.monotonic()
        self._trial_began = first
        while True:
            problem = self._attempt(assignment)
            if self._ends_soon():
                self._end(assignment.asked_hash)
                return
            if self._falls_back(assignment, problem):
                continue
            if self._is_on_probation(assignment):
                restarts = max(restarts, self._restarts(assignment))
            elif self._ready_at is not None and time.monotonic() - self._ready_at > self.steady_s:
                restarts = 0
            delays_s, is_paused = self._delays_s(assignment)
            waits_for_grant = problem.denied and not is_paused and time.monotonic() - first < self.denied_budget_s
            final = not problem.retry or (restarts >= len(delays_s) and not waits_for_grant)
            final = final or (self._is_trial(assignment) and self._is_over_budget(assignment))
            detail = "\n".join([*problem.log_lines, str(problem)])
            if final:
                self._finally(assignment, detail)
                return
            self._publish(assignment, RETRYING, detail)
            delay_s = self.denied_delay_s if waits_for_grant else delays_s[restarts]
            restarts += 0 if waits_for_grant else 1
            attempt = (
                "Attempt after a refused permission" if waits_for_grant else f"Restart {restarts} of {len(delays_s)}"
            )
            log(f"{attempt} in {delay_s:g} s.")
            if self.latest.wait_for_newer(assignment.version, delay_s):
                raise SupersededError
            self._publish(assignment, STARTING, f"{attempt}: {problem}")

    def _attempt(self, assignment: Assignment) -> ServingError:
        """Serve until the server ends or cannot be started. Return why."""
        self._ready_at, self._started = None, None
        if self._is_on_probation(assignment):
            self._trial_began = time.monotonic()  # each of its starts has the whole time
        try:
            self._serve_once(assignment)
        except ServingError as error:
            return error
        except CONNECTION_ERRORS as error:  # also a full disk, and a program that is missing
            return ServingError(f"The machine cannot serve the document: {error}")

    def _container(self, assignment: Assignment) -> Container:
        """Return the form of the next container: confined, unless the settings or what this machine has learnt say otherwise."""
        shm_size_gib, devices = assignment.document.shm_size_gib, accelerator_devices()
        reason = self.kept.container.reason_for(assignment.text_hash)
        if self.latest.limits().is_privileged:
            reason = "tpu.container says so"
        elif not devices:
            reason = "no device of an accelerator was found below /dev"
        if reason:
            return privileged(reason, shm_size_gib)
        options, exposure = self.guard.options(assignment.document)
        form = confined(devices, shm_size_gib)
        return replace(form, options=(*form.options, *options), exposure=exposure)

    def _falls_back(self, assignment: Assignment, problem: ServingError) -> bool:
        """Return whether the next attempt is privileged, because a confined server ended before one was ever ready on this machine.

        It is the only attempt that such an end costs: an end with a known other cause changes nothing, and one that says nothing of its
        cause counts for its document only, until a privileged server is ready.
        """
        started, history = self._started, self.kept.container
        if started is None or not started.is_confined or self._ready_at is not None or history.is_proven:
            return False
        if self.latest.is_newer_than(assignment.version):
            return False
        try:
            state = container_state()
        except ServingError:
            return False
        if state is not None and state.running:
            return False
        verdict = device_problem([*container_log(), str(problem)], state.exit_code if state else 1)
        if verdict is False:
            return False
        cause = (
            "could not use the accelerator" if verdict else "ended before it was ready, and its lines do not say why"
        )
        reason = f"the confined server {cause}: {str(problem)[-200:]}"
        self.kept.keep_fallback(self.publisher.remove_secrets(reason), assignment.text_hash, is_certain=verdict is True)
        self.publisher.remark(f"The server is started again with --privileged: {reason}")
        return True

    def _delays_s(self, assignment: Assignment) -> "tuple[tuple[float, ...], bool]":
        """Return the delays before the next attempts, and whether a trial has stopped the old server, so that nothing answers."""
        if self._is_on_probation(assignment):
            return self.probation_delays_s, False
        if not self._is_trial(assignment):
            return self.restart_delays_s, False
        try:
            state = container_state()
        except ServingError:
            state = None
        old_answers = state is not None and state.running and state.text_hash != assignment.text_hash
        return (self.prepare_delays_s, False) if old_answers else (self.trial_delays_s, True)

    def _finally(self, assignment: Assignment, detail: str) -> None:
        """Publish that no further attempt can succeed, or go back to the document before."""
        failed, probation = assignment.failed, self.kept.probation
        if probation is not None and self._is_on_probation(assignment):
            detail = f"{detail} It had been ready, and this was start {probation.starts} of its probation."
        if failed is None:
            self._give_up(assignment.version, assignment.text, detail)
            return
        words = f"{failed.detail}\nThe document {assignment.text_hash[:12]}, which served before, does not start either: {detail}"
        if self._is_on_probation(assignment):
            self.kept.end_probation(assignment.text_hash)
            self.kept.keep_failed(FailedChange(failed.text_hash, failed.limits, self.publisher.remove_secrets(words)))
            self._go_back(assignment.version, self.kept.failed or failed)
            return
        self.publisher.publish(FAILED, failed.text_hash, f"{words}{self._without_old_secrets(assignment)}")

    def _without_old_secrets(self, assignment: Assignment) -> str:
        """Stop a server that still runs with secrets which were rotated, and return a sentence about it: a leaked key must not go on working."""
        with suppress(ServingError):
            state = container_state()
            if state and state.running and self._has_other_secrets(assignment, state):
                self.publisher.set_fact(SERVING_HASH_KEY, "")
                remove_container()
                return " The server that ran with the API key of before was stopped."
        return ""

    def _serve_once(self, assignment: Assignment) -> NoReturn:
        """Prepare while the previous document's server still answers, then replace that server and watch the new one.

        Raises:
            ServingError: the server ended or cannot be started.
            SupersededError: a newer document has arrived.
        """
        state = container_state()
        if state is None or not state.running:
            self.publisher.set_fact(SERVING_HASH_KEY, "")
        if (
            state
            and state.running
            and state.text_hash == assignment.text_hash
            and not self._has_other_secrets(assignment, state)
        ):
            is_new, drain_s = False, state.drain_s
            self._adopt(assignment, state)
        else:
            is_new, drain_s = True, self._replace(assignment, state)
        follower, shipped = self._followed(assignment.document, is_new=is_new)
        try:
            self._watch_server(assignment, follower, drain_s)
        except ServingError as error:
            raise ServingError(str(error), follower.stop(wait_s=2.0), retry=error.retry) from None
        finally:
            follower.stop()
            shipped.stop(wait_s=0.0 if self.latest.is_newer_than(assignment.version) else 2.0)

    def _adopt(self, assignment: Assignment, state: ContainerState) -> None:
        """Publish the form of a container that an earlier agent started."""
        since = "it runs since before this agent"
        if state.form in {CONFINED, EXPOSED}:
            self._started = confined(accelerator_devices(), assignment.document.shm_size_gib)
            words = container_words(state.form, "" if state.form == CONFINED else since)
        else:
            words = container_words(PRIVILEGED, self.kept.container.reason_for(assignment.text_hash) or since)
        if state.form == CONFINED:
            self.guard.keep()
        self.publisher.set_fact(CONTAINER_KEY, words)

    def _has_other_secrets(self, assignment: Assignment, state: ContainerState) -> bool:
        """Whether the document's server runs with other secrets than the assignment's: newer ones of the way back, or rotated ones."""
        asked = assignment.document.secret_environment
        if state.secrets:
            return state.secrets != secrets_hash(asked)
        # A container of an earlier agent: with the secrets of its text, or with newer ones of a way back.
        kept = self.kept.find(assignment.text_hash)
        known = (parse_document(assignment.text), *((kept.document,) if kept else ()))
        return any(one.secret_environment != asked for one in known)

    def _replace(self, assignment: Assignment, state: "ContainerState | None") -> float:
        """Stop the server that runs, and start the assignment's, once all that it needs is on the machine. Return its drain in seconds."""
        starts, is_on_probation = self._earlier_starts(assignment), self._is_on_probation(assignment)
        if starts > len(self.probation_delays_s if is_on_probation else self.trial_delays_s):
            ended = (
                "it, the agent or the machine ended"
                if is_on_probation
                else "the agent or the machine ended before it was ready"
            )
            raise ServingError(f"The server was started {starts} times, and {ended}.", retry=False)
        secrets, has_models = self._prepare_in_time(assignment)
        self._publish(assignment, LOADING, "starting the server")
        limits = self.latest.limits()
        if state and state.running:
            self._wait_until_idle(state, limits.drain_s, assignment.version)
            if self.latest.is_newer_than(assignment.version):
                raise SupersededError
            self._begin_pause()
        self.publisher.set_fact(SERVING_HASH_KEY, "")
        remove_container()
        if not has_models:
            remove_other_models(assignment.document)
        if self._is_trial(assignment) or is_on_probation:
            versions = assignment.document.secret_environment
            self.kept.keep_start(assignment.text_hash, limits_name(self.latest.limits_text()), versions)
        drain_s = self._drain_s(assignment)
        self._started = self._container(assignment)
        self.publisher.set_fact(CONTAINER_KEY, self._started.words)
        return start_container(assignment.document, assignment.text_hash, secrets, self._started, drain_s=drain_s)

    def _prepare_in_time(self, assignment: Assignment) -> "tuple[dict[str, str], bool]":
        """Prepare; raise ServingError if the change's time or the run is over, SupersededError if a newer document has arrived."""

        def cancelled() -> bool:
            over = self._is_over_budget(assignment) or self._ends_soon()
            return over or self.latest.is_newer_than(assignment.version)

        prepared: tuple[dict[str, str], bool] | None = None
        with suppress(SupersededError):
            prepared = self._prepare(assignment, cancelled)
        if self.latest.is_newer_than(assignment.version):
            raise SupersededError
        if self._ends_soon():
            raise ServingError(RUN_ENDS, retry=False)
        if prepared is None or cancelled():
            raise self._over_budget()
        return prepared

    def _drain_s(self, assignment: Assignment) -> float:
        """Return for how long the assignment's server can drain by itself: its image may not know the flag."""
        if assignment.failed is not None:
            back = self.kept.find(assignment.text_hash)
            return float(back.drain_s) if back else 0.0
        limits = self.latest.limits()
        return limits.drain_s if limits.shutdown_flag else 0.0

    def _forget_pause(self, text_hash: str) -> None:
        """Unpublish the pause of the change before, unless it goes on. An earlier agent may have published it."""
        if not self.kept.pause_began_at and self.kept.paused_for not in {"", text_hash}:
            self.publisher.set_fact(PAUSE_BEGAN_KEY, "")
            self.publisher.set_fact(PAUSE_ENDED_KEY, "")
            self.kept.keep_pause("")

    def _begin_pause(self) -> None:
        if self.kept.pause_began_at:
            return  # of the change that is rolled back now
        self.kept.keep_pause(utc_now())
        self.publisher.set_fact(PAUSE_ENDED_KEY, "")
        self.publisher.set_fact(PAUSE_BEGAN_KEY, self.kept.pause_began_at)

    def _end_pause(self, asked_hash: str) -> None:
        if self.kept.pause_began_at:
            self.publisher.set_fact(PAUSE_BEGAN_KEY, self.kept.pause_began_at)
            self.publisher.set_fact(PAUSE_ENDED_KEY, utc_now())
            self.kept.keep_pause("", asked_hash)

    def _wait_until_idle(self, state: ContainerState, limit_s: float, version: "int | None" = None) -> None:
        """Wait, at most `limit_s`, for a moment without requests, or for a version newer than this one.

        A server that drains by itself needs no such moment.
        """
        served = self.kept.find(state.text_hash)
        if state.drain_s or served is None:
            return
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self._requests(served.document):
            if version is not None and self.latest.is_newer_than(version):
                return
            time.sleep(0.2)

    def _requests(self, document: ServingDocument) -> float:
        """Return how many requests run and wait; 0 if the server does not say."""
        return sum(value for line, value in self._metrics(document) if line.startswith(IDLE_METRICS))

    def _answered(self, document: ServingDocument) -> "float | None":
        """Return how many requests the server has answered since its start; None if it does not say."""
        found = [(line, value) for line, value in self._metrics(document) if line.startswith(ANSWERED_METRIC)]
        answered = sum(value for line, value in found if any(reason in line for reason in ANSWERED_REASONS))
        return answered if found else None

    def _metrics(self, document: ServingDocument) -> "list[tuple[str, float]]":
        """Return the lines of the server's metrics with their values; none if it does not answer."""
        url = f"http://{self.loopback}:{document.port}/metrics"
        asked = urllib.request.Request(url, headers=self._key_header(document))
        try:
            with DIRECT.open(asked, timeout=5) as response:
                lines = response.read().decode(errors="replace").splitlines()
            return [(line, float(line.rpartition(" ")[2])) for line in lines if line.startswith("vllm:")]
        except CONNECTION_ERRORS:
            return []

    def _key_header(self, document: ServingDocument) -> "dict[str, str]":
        """Return the header with the server's API key; none if it has no key, or if Secret Manager does not give it."""
        version = document.secret_environment.get(API_KEY_VARIABLE)
        if version is not None and version not in self._known_secrets:
            with suppress(ServingError):
                self._learn_secrets(document)
        key = self._known_secrets.get(version or "")
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def _has_passed(self, document: ServingDocument) -> bool:
        """Whether the server that is ready has served for long enough for its document to be the one to go back to."""
        is_old = self._ready_at is not None and time.monotonic() - self._ready_at >= self.probation_s
        answered = self._answered(document)
        if answered is None:
            return is_old
        return answered >= self.probation_requests or (answered > 0 and is_old)

    def _ends_soon(self) -> bool:
        lead_s = ENDING_LEAD_S + self.latest.limits().drain_s
        return self.ends_at_s is not None and time.time() > self.ends_at_s - lead_s

    def _end(self, text_hash: str) -> None:
        """Let running requests end, and stop the server before Google deletes the machine."""
        with_end = datetime.fromtimestamp(self.ends_at_s or 0.0, timezone.utc)
        self.publisher.publish(ENDING, text_hash, f"Google deletes the machine at {with_end:%Y-%m-%d %H:%M:%S} UTC")
        state = container_state()
        if state and state.running:
            self._wait_until_idle(state, self.latest.limits().drain_s)
            remove_container()
        self.publisher.set_fact(SERVING_HASH_KEY, "")

    def _followed(self, document: ServingDocument, *, is_new: bool) -> "tuple[LogFollower, LogFollower]":
        """Follow the log for the phases, and for Cloud Logging. Without the server's secrets no line can be masked, and none is read.

        Lines that a server printed before this agent started were written to Cloud Logging by the one before it.
        """
        phases, shipped = LogFollower(), LogFollower()
        try:
            self._learn_secrets(document)
        except ServingError as error:
            log(f"The server's lines are not published: its secrets cannot be masked ({error}).")
            return phases, shipped
        phases.start()
        if self.shipper is not None:
            shipped = LogFollower(tell=self.shipper.server_line, tail="all" if is_new else "0")
            shipped.start()
        return phases, shipped

    def _learn_secrets(self, document: ServingDocument) -> None:
        """Read the secrets of a server that an earlier agent started, so that no line shows them. Raises ServingError."""
        for version in set(document.secret_environment.values()) - set(self._known_secrets):
            self._read_secret(version)

    def _read_secret(self, version: str, *, is_back: bool = False, is_api_key: bool = False) -> str:
        """Return a secret's value and mask it from now on. On the way back the value that this agent has read of the same version will do.

        Not so for an API key that Secret Manager refuses: then it was withdrawn.
        """
        try:
            value = read_secret(self.metadata, version)
        except ServingError as error:
            is_refused = HTTPStatus.BAD_REQUEST <= error.status < HTTPStatus.INTERNAL_SERVER_ERROR
            if not is_back or version not in self._known_secrets or (is_api_key and is_refused):
                raise
            return self._known_secrets[version]
        self.publisher.secrets.add(value)
        self._known_secrets[version] = value
        return value

    def _prepare(self, assignment: Assignment, cancelled: Callable[[], bool]) -> "tuple[dict[str, str], bool]":
        """Pull the image and fetch the weights. Return the secrets' values by the names of their variables, and whether the models are here."""
        document, is_back, back = assignment.document, assignment.failed is not None, self.kept.back
        self.kept.note_fetched(document)
        if self._is_trial(assignment):
            self._remove_others(document)

        def progress(phase: str) -> Callable[[str], None]:
            self._publish(assignment, phase)
            return lambda detail: self._publish(assignment, phase, detail)

        restored = self.programs.restore_beside(document)
        pull(
            self.metadata,
            document.image,
            progress=progress(PULLING_IMAGE),
            cancelled=cancelled,
            keep_local=is_back,
        )
        if document.weights is not None:
            self._copy_weights(
                WeightsCopy(self.metadata, document.weights, progress(FETCHING_WEIGHTS), cancelled), is_back
            )
        secrets = {
            name: self._read_secret(secret, is_back=is_back, is_api_key=name == API_KEY_VARIABLE)
            for name, secret in document.secret_environment.items()
        }
        self.programs.wait_for(restored, cancelled)
        if back is None or not self._is_trial(assignment):
            return secrets, True
        fetch = HubFetch(
            document, secrets, lambda detail: self._publish(assignment, FETCHING_WEIGHTS, detail), cancelled
        )
        return secrets, fetch.run(back.document)

    def _remove_others(self, document: ServingDocument) -> None:
        """Delete images and weights that this agent has fetched for documents other than this one and those to go back to."""
        documents = (document, *(kept.document for kept in self.kept.documents()))
        needed = {name for one in documents for name in fetched_by(one)}
        for name, kind in tuple(self.kept.fetched.items()):
            if name not in needed and (remove_image(name) if kind == IMAGE_KIND else remove_copy(name, needed)):
                del self.kept.fetched[name]
        self.kept.write()

    @staticmethod
    def _copy_weights(copy: WeightsCopy, is_back: bool) -> None:
        try:
            copy.run()
        except ServingError as error:
            if not is_back:
                raise
            log(f"The last good document starts with the weights that are here: {error}")

    def _watch_server(self, assignment: Assignment, follower: LogFollower, drain_s: float) -> NoReturn:
        was_ready, lost_since, poll_s = False, 0.0, 0.1
        while True:
            problem = self._health_problem(assignment.document.port)
            if problem:
                self._require_running()
            if not problem:
                if not was_ready:
                    self._begin_ready(assignment)
                was_ready, lost_since = True, 0.0
                self._take_ready(assignment, drain_s)
            elif was_ready:
                lost_since = lost_since or time.monotonic()
                self.publisher.set_fact(SERVING_HASH_KEY, "")
                self._publish(assignment, LOADING, f"/health does not answer any more: {problem}")
                if time.monotonic() - lost_since > self.health_lost_s:
                    remove_container()
                    raise ServingError(
                        f"The server was ready, then /health did not answer for {self.health_lost_s:.0f} s: {problem}"
                    )
            elif self._is_over_budget(assignment):
                raise self._over_budget()
            else:
                self._publish(assignment, follower.phase, follower.detail)
            if self._ends_soon():
                raise ServingError(RUN_ENDS, retry=False)
            poll_s = min(1.0, poll_s * 1.2) if problem else self.health_poll_s
            if self.latest.wait_for_newer(assignment.version, poll_s):
                raise SupersededError

    def _begin_ready(self, assignment: Assignment) -> None:
        """Note that the server answers for the first time since its start."""
        self._ready_at = time.monotonic()
        if self._started is not None:
            self.kept.keep_container_ready(assignment.text_hash, is_confined=self._started.is_confined)
        self.programs.server_is_ready(assignment.document)

    def _health_problem(self, port: int) -> str:
        """Return what is wrong with the server's /health, or an empty text if it answers."""
        try:
            with DIRECT.open(f"http://{self.loopback}:{port}/health", timeout=5):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return f"status {error.code}"
        except CONNECTION_ERRORS as error:
            return str(getattr(error, "reason", error))

    def _take_ready(self, assignment: Assignment, drain_s: float) -> None:
        """Publish that the server answers, and keep its document, first on probation. The phase comes last: its reader finds the rest."""
        self.publisher.set_fact(SERVING_HASH_KEY, assignment.text_hash)
        self._end_pause(assignment.asked_hash)
        before = self.kept.documents()
        if assignment.failed is None:
            self._keep_ready(GoodDocument(assignment.text, assignment.document.image, f"{drain_s:g}"))
        if self._is_on_probation(assignment) and self._has_passed(assignment.document):
            log(f"Document {assignment.text_hash[:12]} has passed its probation.")
            self.kept.pass_probation()
        is_new = self.kept.documents() != before
        if is_new:
            remove_other_models(*(kept.document for kept in self.kept.documents()))
        former = self.kept.good if self.kept.probation else None
        self.publisher.set_fact(FORMER_HASH_KEY, former.text_hash if former else "")
        self.kept.write()
        self._publish(assignment, READY)
        if is_new:
            self._remove_others(assignment.document)

    def _keep_ready(self, ready: GoodDocument) -> None:
        """Keep the document of a server that answers, unless nothing of it is new."""
        if self.kept.failed is not None or self.kept.back != ready:
            self.kept.keep_ready(ready)

    def _require_running(self) -> None:
        """Raise ServingError if the server's container has ended."""
        state = container_state()
        if state is None or not state.running:
            self.publisher.set_fact(SERVING_HASH_KEY, "")
        if state is None:
            raise ServingError("The server stopped: its container was removed.")
        if not state.running:
            killed = " (killed, most likely out of memory)" if state.exit_code == KILLED_EXIT_CODE else ""
            raise ServingError(
                f"The server stopped with exit code {state.exit_code}{killed}.",
                retry=state.exit_code != USAGE_EXIT_CODE,
            )
