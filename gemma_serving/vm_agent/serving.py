"""Agent: serves the document, restarts a server that stops, and rolls back a bad document."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from http import HTTPStatus
from typing import NoReturn

from gemma_serving.contracts.guest_attributes import (
    CONTAINER_KEY,
    FAILED,
    FETCHING_WEIGHTS,
    FORMER_HASH_KEY,
    LOADING,
    PULLING_IMAGE,
    READY,
    RESTART_KEY,
    RETRYING,
    SERVING_HASH_KEY,
    STARTING,
    WAITING_FOR_DOCKER,
)
from gemma_serving.contracts.server_errors import server_error, waiting_phase
from gemma_serving.contracts.serving_document import (
    API_KEY_VARIABLE,
    DOCUMENT_METADATA_KEY,
    DocumentError,
    ServingDocument,
    api_key_of,
    document_hash,
    parse_document,
    secrets_hash,
)
from gemma_serving.vm_agent.base import ServingError, SupersededError, log
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.cloud import CONNECTION_ERRORS, MetadataClient, near_image
from gemma_serving.vm_agent.compile_cache import CompiledPrograms
from gemma_serving.vm_agent.confinement import ERROR_EXIT_CODE, KILLED_EXIT_CODE, USAGE_EXIT_CODE
from gemma_serving.vm_agent.containers import (
    ContainerState,
    container_log,
    container_state,
    docker_problem,
    pull,
    remove_container,
    remove_image,
    remove_other_models,
    start_container,
)
from gemma_serving.vm_agent.follow import LatestDocument
from gemma_serving.vm_agent.metadata_guard import MetadataGuard
from gemma_serving.vm_agent.prefetch import HubFetch, fetched_models, hub_models
from gemma_serving.vm_agent.publishing import LogFollower, PhasePublisher
from gemma_serving.vm_agent.running_server import RUN_ENDS, ContainerForm, IdleTime, KnownSecrets, RunEnd, RunningServer
from gemma_serving.vm_agent.shipping import LogShipper
from gemma_serving.vm_agent.stored_state import (
    IMAGE_KIND,
    AgentPacing,
    Assignment,
    FailedChange,
    GoodDocument,
    StoredState,
    fetched_by,
)
from gemma_serving.vm_agent.together import Together
from gemma_serving.vm_agent.weights import WeightsCopy, remove_copy


@dataclass
class Attempts:
    """Attempts at one assignment so far: restarts after a problem, and attempts in a row that waited for an outside cause."""

    restarts: int
    began_s: float
    waits: int = 0


@dataclass(frozen=True)
class NextAttempt:
    """Delay before an attempt in seconds, the phase until then, and the words for the log and the detail."""

    delay_s: float
    phase: str
    words: str


class Agent:
    """Agent that serves one document at a time, always the newest one."""

    def __init__(
        self,
        metadata: MetadataClient,
        latest: LatestDocument,
        publisher: PhasePublisher,
        shipper: "LogShipper | None" = None,
        pacing: "AgentPacing | None" = None,
        *,
        clock: AgentClock = CLOCK,
    ) -> None:
        """`shipper` receives the server's log lines; None keeps them on the machine."""
        self.metadata = metadata
        self.latest = latest
        self.publisher = publisher
        self.shipper = shipper
        self.pacing = pacing or AgentPacing()
        self.clock = clock
        self.stored = StoredState(clock=clock)
        self.secrets = KnownSecrets(metadata, publisher)
        self.server = RunningServer(self.stored, latest, self.secrets, clock=clock)
        self.run_end = RunEnd(latest, publisher, self.server)
        self.idle = IdleTime(publisher)
        self.guard = MetadataGuard(metadata)
        self.form = ContainerForm(latest, publisher, self.stored, self.guard)
        self.programs = CompiledPrograms(metadata, publisher, clock=clock)
        self._ready_at: float | None = None
        self._began_s = 0.0  # of the assignment's attempts
        self._has_docker = False
        """Docker has responded to this agent."""
        self._docker_left = False
        """Since the last start of a server, docker stopped responding, so the next one is not the document's fault."""

    def run(self) -> NoReturn:
        """Serve forever."""
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
                self.stored.forget_trial()

    def serve(self, version: int, text: str | None) -> None:
        """Serve one document, until no further attempt can succeed. Raises SupersededError."""
        if text is None:
            self.publisher.publish(STARTING, "", f"waiting for the metadata key {DOCUMENT_METADATA_KEY}")
            return
        text_hash, failed = document_hash(text), self.stored.failed
        if self.run_end.is_soon():
            self.run_end.end_server(text_hash)
            return
        if failed and (failed.text_hash, failed.limits) == (text_hash, self.latest.limits_name()):
            self._roll_back(version, failed)  # it failed before this agent started
            return
        self.stored.forget_pause(self.publisher, text_hash)
        self.publisher.publish(STARTING, text_hash)
        self.publisher.set_fact(RESTART_KEY, self.latest.restart() or "")  # after the phase, which now belongs to it
        try:
            document = parse_document(text)
        except DocumentError as error:
            self._give_up(version, text, str(error))
            return
        near = replace(document, image=near_image(self.metadata, document.image))
        self._serve_with_restarts(Assignment(version, text_hash, near, text))

    def _give_up(self, version: int, text: str, detail: str) -> None:
        """Serve the previous document with the failed one's API key, or publish that nothing serves."""
        text_hash = document_hash(text)
        self.latest.give_up(version)
        self.stored.end_probation(text_hash)
        back = self.stored.back
        if back is None or back.text_hash == text_hash:
            self.publisher.publish(FAILED, text_hash, detail)
            return
        limits = self.latest.limits_name()
        failed = FailedChange(text_hash, limits, self.publisher.remove_secrets(f"{detail}{self._rotate_api_key(text)}"))
        self.stored.keep_failed(failed)
        self._roll_back(version, failed)

    def _rotate_api_key(self, text: str) -> str:
        """Set the failed document's API key in the rollback documents. Return a sentence about it."""
        version = api_key_of(text)
        if version is None or not self.stored.has_other_api_key(version):
            return ""
        try:
            self.secrets.read(version)
        except ServingError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return f" {version} does not exist, so the API key was not rotated. The previous key remains valid."
        self.stored.rotate_api_key(version)
        return f" The previous document serves with the new API key, {version}."

    def _roll_back(self, version: int, failed: FailedChange) -> None:
        self.latest.give_up(version)
        back = self.stored.back
        if back is None:
            self.publisher.publish(FAILED, failed.text_hash, failed.detail)
            return
        log(f"Document {failed.text_hash[:12]} failed. Rolling back to document {back.text_hash[:12]}.")
        self._serve_with_restarts(Assignment(version, back.text_hash, back.document, back.text, failed))

    def _serve_with_restarts(self, assignment: Assignment) -> None:
        """Serve the assignment until no further attempt can succeed. Raises SupersededError."""
        attempts = Attempts(restarts=self._restarts(assignment), began_s=self.clock.now())
        self._began_s = attempts.began_s
        while True:
            problem = self._attempt(assignment)
            if self.run_end.is_soon():
                self.run_end.end_server(assignment.asked_hash)
                return
            problem = self.form.explained(problem, was_ready=self._ready_at is not None)
            if self.stored.is_on_probation(assignment):
                attempts.restarts = max(attempts.restarts, self._restarts(assignment))
            elif self._ready_at is not None and self.clock.now() - self._ready_at > self.pacing.steady_s:
                attempts.restarts = 0
            if problem.waits_for == WAITING_FOR_DOCKER:
                self._wait_for_docker(assignment, problem)
                continue
            detail = "\n".join([*problem.log_lines, str(problem)])
            following = self._next_attempt(assignment, problem, attempts)
            if following is None:
                self._finally(assignment, detail)
                return
            assignment.publish(self.publisher, following.phase, detail)
            log(f"{following.words} in {following.delay_s:g} s.")
            self._wait(assignment, following.delay_s)
            assignment.publish(self.publisher, STARTING, f"{following.words}: {problem}")

    def _next_attempt(
        self, assignment: Assignment, problem: ServingError, attempts: "Attempts"
    ) -> "NextAttempt | None":
        """Return the attempt that follows a problem, and count it. Return None if no further attempt can succeed.

        The first row that applies:
        - A problem that no attempt can solve, or a trial whose time is over: none.
        - A cause outside the document, such as an unreachable hub: as often as needed, until the run expires.
        - A denied permission: every `denied_delay_s`, for `denied_budget_s`.
        - Another problem: one of the restarts that are left, or none.
        A trial that has stopped the old server gets only its restarts, because nothing serves.
        """
        if not problem.retry or (self.stored.is_trial(assignment) and self._is_over_budget(assignment)):
            return None
        delays_s, is_paused = self._delays_s(assignment)
        waiting = "" if is_paused else self._waiting_phase(assignment, problem)
        attempts.waits = attempts.waits + 1 if waiting else 0
        if waiting:
            delay_s = self.pacing.waiting_delay_of_s(attempts.waits)
            return NextAttempt(delay_s, waiting, f"Attempt {attempts.waits} while {waiting}")
        is_in_budget = self.clock.now() - attempts.began_s < self.pacing.denied_budget_s
        if problem.denied and not is_paused and is_in_budget:
            return NextAttempt(self.pacing.denied_delay_s, RETRYING, "Attempt after a denied permission")
        if attempts.restarts >= len(delays_s):
            return None
        delay_s = delays_s[attempts.restarts]
        attempts.restarts += 1
        return NextAttempt(delay_s, RETRYING, f"Restart {attempts.restarts} of {len(delays_s)}")

    def _waiting_phase(self, assignment: Assignment, problem: ServingError) -> str:
        """Return the phase of waiting for the hub, a registry or storage, or empty for a verdict.

        No rotation of the API key waits, because the server with the former key may still run.
        """
        key = assignment.document.secret_environment.get(API_KEY_VARIABLE, "")
        rotates = self.stored.is_trial(assignment) and self.stored.has_other_api_key(key)
        if rotates or (assignment.failed is not None and problem.waits_for == RETRYING):
            return ""
        if problem.waits_for or self._ready_at is not None or self.stored.is_on_probation(assignment):
            return problem.waits_for
        with suppress(ServingError):
            state = container_state()
            if self.form.started is not None and state and not state.running and state.exit_code == ERROR_EXIT_CODE:
                return waiting_phase(container_log())
        return ""

    def _wait_for_docker(self, assignment: Assignment, problem: ServingError) -> None:
        """Wait until docker responds, but not beyond the run. The time is not the document's. Raises SupersededError."""
        began_s, waits_for = self.clock.now(), problem
        self._docker_left = self._docker_left or self._has_docker
        self._has_docker = False
        while waits_for and not self.run_end.is_soon():
            if self.server.health_problem(assignment.document.port):
                self.publisher.set_fact(SERVING_HASH_KEY, "")
            assignment.publish(self.publisher, WAITING_FOR_DOCKER, "\n".join([*waits_for.log_lines, str(waits_for)]))
            self._wait(assignment, self.pacing.docker_poll_s)
            waits_for = docker_problem()
        self._began_s += self.clock.now() - began_s
        assignment.publish(self.publisher, STARTING, "docker responds")

    def _wait(self, assignment: Assignment, delay_s: float) -> None:
        """Wait before the next attempt, but not beyond the run. Raises SupersededError."""
        until = self.clock.now() + delay_s
        while not self.run_end.is_soon():
            left_s = until - self.clock.now()
            if self.latest.wait_for_newer(assignment.version, max(0.0, min(left_s, self.publisher.progress_s))):
                raise SupersededError
            if left_s <= 0:
                return
            self.publisher.publish_again()

    def _attempt(self, assignment: Assignment) -> ServingError:
        """Serve until the server stops or cannot be started. Return the error."""
        self._ready_at, self.form.started = None, None
        if self.stored.is_on_probation(assignment):
            self._began_s = self.clock.now()  # each of its starts gets the full time
        try:
            self._serve_once(assignment)
        except ServingError as error:
            problem = error
        except CONNECTION_ERRORS as error:  # includes a full disk and a missing program
            problem = ServingError(f"The TPU VM cannot serve the document: {error}")
        # Without docker each attempt fails, whatever it says.
        return problem if problem.waits_for == WAITING_FOR_DOCKER else docker_problem() or problem

    def _finally(self, assignment: Assignment, detail: str) -> None:
        """Publish that no further attempt can succeed, or roll back to the previous document."""
        failed, probation = assignment.failed, self.stored.probation
        if probation is not None and self.stored.is_on_probation(assignment):
            detail = f"{detail} It was ready before; this was start {probation.starts} of its probation."
        if failed is None:
            self._give_up(assignment.version, assignment.text, detail)
            return
        text = f"{failed.detail}\nThe previous document {assignment.text_hash[:12]} does not start either: {detail}"
        if self.stored.is_on_probation(assignment):
            self.stored.end_probation(assignment.text_hash)
            self.stored.keep_failed(FailedChange(failed.text_hash, failed.limits, self.publisher.remove_secrets(text)))
            self._roll_back(assignment.version, self.stored.failed or failed)
            return
        self.publisher.publish(FAILED, failed.text_hash, f"{text}{self._without_old_secrets(assignment)}")

    def _without_old_secrets(self, assignment: Assignment) -> str:
        """Stop a server with rotated secrets, which may have leaked. Return a sentence about it."""
        with suppress(ServingError):
            state = container_state()
            if state and state.running and self._has_other_secrets(assignment, state):
                self.publisher.set_fact(SERVING_HASH_KEY, "")
                remove_container()
                return " The server with the previous API key was stopped."
        return ""

    def _serve_once(self, assignment: Assignment) -> NoReturn:
        """Prepare while the previous document's server still serves, then replace that server and watch the new one.

        Raises ServingError if the server stopped or cannot be started, and SupersededError if a newer document has arrived.
        """
        state = container_state()
        self._has_docker = True
        if state is None or not state.running:
            self.publisher.set_fact(SERVING_HASH_KEY, "")
        if (
            state
            and state.running
            and state.text_hash == assignment.text_hash
            and not self._has_other_secrets(assignment, state)
            and not self._is_asked_to_restart(state)
        ):
            is_new, drain_s = False, state.drain_s
            self.form.adopt(state)
        else:
            is_new, drain_s = True, self._replace(assignment, state)
        self._docker_left = False
        follower = self._followed(assignment.document, is_new=is_new)
        try:
            self._watch_server(assignment, follower, drain_s)
        except ServingError as error:
            lines = follower.stop(wait_s=2.0)
            raise ServingError(str(error), lines, retry=error.retry, waits_for=error.waits_for) from None
        finally:
            follower.stop(wait_s=0.0 if self.latest.is_newer_than(assignment.version) else 2.0)

    @staticmethod
    def _has_other_secrets(assignment: Assignment, state: ContainerState) -> bool:
        """Return whether the server has other secrets than the assignment: newer ones of a rollback, or rotated ones."""
        return state.secrets != secrets_hash(assignment.document.secret_environment)

    def _is_asked_to_restart(self, state: ContainerState) -> bool:
        """Return whether the server was started before the last requested restart."""
        asked = self.latest.restart()
        return asked is not None and state.restart != asked

    def _replace(self, assignment: Assignment, state: "ContainerState | None") -> float:
        """Fetch the assignment's image and weights, and replace the server. Return its drain in seconds."""
        starts = self.stored.starts(assignment, self.latest.limits_name())
        is_on_probation = self.stored.is_on_probation(assignment)
        is_counted = is_on_probation or self.stored.is_trial(assignment)
        is_asked = is_on_probation and state and state.running and self._is_asked_to_restart(state)
        if starts and (is_asked or self._docker_left):
            starts, is_counted = 0, False  # a stop on request, or with docker, proves nothing about the document
        if starts > len(self.pacing.probation_delays_s if is_on_probation else self.pacing.trial_delays_s):
            ended = (
                "it, the agent or the TPU VM stopped each time"
                if is_on_probation
                else "the agent or the TPU VM stopped before it was ready"
            )
            raise ServingError(f"The server was started {starts} times, but {ended}.", retry=False)
        secrets, has_models = self._prepared(assignment)
        assignment.publish(self.publisher, LOADING, "starting the server")
        limits = self.latest.limits()
        if state and state.running:
            self.server.wait_until_idle(state, limits.drain_s, assignment.version)
            if self.latest.is_newer_than(assignment.version):
                raise SupersededError
            self.stored.begin_pause(self.publisher)
        self.publisher.set_fact(SERVING_HASH_KEY, "")
        remove_container()
        if not has_models:
            remove_other_models(assignment.document)
        if is_counted:
            self.stored.keep_start(assignment, self.latest.limits_name())
        drain_s = self._drain_s(assignment)
        self.form.started = self.form.choose(assignment)
        self.publisher.set_fact(CONTAINER_KEY, self.form.started.words)
        return start_container(
            assignment.document,
            assignment.text_hash,
            secrets,
            self.form.started,
            drain_s=drain_s,
            restart=self.latest.restart() or "",
        )

    def _prepared(self, assignment: Assignment) -> "tuple[dict[str, str], bool]":
        """Fetch the document's image and weights. Return the secrets, and whether the models are on the machine.

        Raises ServingError, even if the change's or the run's time is over, and SupersededError.
        """

        def cancelled() -> bool:
            over = self._is_over_budget(assignment) or self.run_end.is_soon()
            return over or self.latest.is_newer_than(assignment.version)

        prepared: tuple[dict[str, str], bool] | None = None
        with suppress(SupersededError):
            prepared = self._fetched(assignment, cancelled)
        if self.latest.is_newer_than(assignment.version):
            raise SupersededError
        if self.run_end.is_soon():
            raise ServingError(RUN_ENDS, retry=False)
        if prepared is None or cancelled():
            raise self._over_budget()
        return prepared

    def _fetched(self, assignment: Assignment, cancelled: Callable[[], bool]) -> "tuple[dict[str, str], bool]":
        """Pull the image and fetch the weights, secrets, programs and models."""
        document = assignment.document
        is_back = assignment.failed is not None
        self.stored.note_fetched(document)
        is_trial = self.stored.is_trial(assignment)
        if is_trial:
            self._remove_others(document)

        restored = self.programs.restore_beside(document)

        def pull_image(progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
            pull(
                self.metadata,
                document.image,
                progress=progress,
                cancelled=cancelled,
                keep_local=is_back,
                clock=self.clock,
            )

        @cache
        def secrets() -> "dict[str, str]":
            return {
                name: self.secrets.read(secret, is_back=is_back, is_api_key=name == API_KEY_VARIABLE)
                for name, secret in document.secret_environment.items()
            }

        has_models = True
        kept = [one.document for one in self.stored.documents()]
        has_new_model = bool(set(fetched_models(document)) - {model for one in kept for model in hub_models(one)})
        # The server of another image could write the cache, so its files are compared with the hub's digests before a new one gets them.
        known = {model for one in kept if one.image == document.image for model in hub_models(one)}

        def fetch_weights(progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
            nonlocal has_models
            try:
                for copied in document.copies:
                    WeightsCopy(self.metadata, copied, progress, cancelled).run()
            except ServingError as error:
                if not is_back:
                    raise
                log(f"Starting the last known good document with the weights on this TPU VM: {error}")
            has_models = HubFetch(
                document, secrets, progress, cancelled, is_trial=is_trial and has_new_model, metadata=self.metadata
            ).run(known)

        has_weights = document.copies or set(fetched_models(document)) - known
        works = {PULLING_IMAGE: pull_image, **({FETCHING_WEIGHTS: fetch_weights} if has_weights else {})}
        publish, report = partial(assignment.publish, self.publisher), self.publisher.report
        Together(publish, cancelled, report, self.publisher.progress_s, self.clock).run(works)
        found = secrets()
        self.programs.wait_for(restored, cancelled)
        return found, has_models

    def _remove_others(self, document: ServingDocument) -> None:
        """Delete images and weights that neither this document nor the rollback documents need."""
        documents = (document, *(kept.document for kept in self.stored.documents()))
        needed = {name for one in documents for name in fetched_by(one)}
        for name, kind in tuple(self.stored.fetched.items()):
            if name not in needed and (remove_image(name) if kind == IMAGE_KIND else remove_copy(name, needed)):
                del self.stored.fetched[name]
        self.stored.write()

    def _restarts(self, assignment: Assignment) -> int:
        """Return the restarts used. On probation, the start that became ready is none."""
        starts = self.stored.starts(assignment, self.latest.limits_name())
        return starts - (1 if self.stored.is_on_probation(assignment) else 0)

    def _is_over_budget(self, assignment: Assignment) -> bool:
        """Return whether the time of a change that can be rolled back is over."""
        can_roll_back = self.stored.is_trial(assignment) or self.stored.is_on_probation(assignment)
        return can_roll_back and self.clock.now() - self._began_s > self.latest.limits().ready_timeout_s

    def _over_budget(self) -> ServingError:
        limit_s = self.latest.limits().ready_timeout_s
        return ServingError(f"The server was not ready within {limit_s:.0f} s (tpu.readyTimeout).", retry=False)

    def _delays_s(self, assignment: Assignment) -> "tuple[tuple[float, ...], bool]":
        """Return the delays before the next attempts, and whether a trial has stopped the old server."""
        if self.stored.is_on_probation(assignment):
            return self.pacing.probation_delays_s, False
        if not self.stored.is_trial(assignment):
            return self.pacing.restart_delays_s, False
        try:
            state = container_state()
        except ServingError:
            state = None
        old_answers = state is not None and state.running and state.text_hash != assignment.text_hash
        return (self.pacing.prepare_delays_s, False) if old_answers else (self.pacing.trial_delays_s, True)

    def _has_passed(self, document: ServingDocument) -> bool:
        """Return whether the server has served enough for its document to become the rollback target."""
        is_old = self._ready_at is not None and self.clock.now() - self._ready_at >= self.pacing.probation_s
        load = self.server.load(document)
        if load is None:
            return is_old
        return load.answered >= self.pacing.probation_requests or (load.answered > 0 and is_old)

    def _drain_s(self, assignment: Assignment) -> float:
        """Return how long the assignment's server can drain on its own."""
        if assignment.failed is not None:
            back = self.stored.find(assignment.text_hash)
            return float(back.drain_s) if back else 0.0
        limits = self.latest.limits()
        return limits.drain_s if limits.shutdown_flag else 0.0

    def _followed(self, document: ServingDocument, *, is_new: bool) -> LogFollower:
        """Follow the log for the phases and for Cloud Logging.

        Without the server's secrets no line can be masked, so none is read.
        """
        follower = LogFollower(tell=self.shipper.server_line if self.shipper else None, is_new=is_new, clock=self.clock)
        try:
            self.secrets.learn(document)
        except ServingError as error:
            log(f"The server's log is not published because its secrets cannot be masked ({error}).")
            return follower
        follower.start()
        return follower

    def _watch_server(self, assignment: Assignment, follower: LogFollower, drain_s: float) -> NoReturn:
        was_ready = False
        lost_since = 0.0
        poll_s = 0.1
        while True:
            problem = self.server.health_problem(assignment.document.port)
            if problem:
                self.publisher.set_fact(SERVING_HASH_KEY, "")
                self._require_running(assignment.document)
            if not problem:
                self._watch_docker(follower)
                if not was_ready:  # for the first time since its start
                    self._ready_at = self.clock.now()
                    self.idle.begin()
                    self.programs.server_is_ready(assignment.document)
                was_ready, lost_since = True, 0.0
                self._take_ready(assignment, drain_s)
                self.idle.read(lambda: self.server.load(assignment.document))
            elif was_ready:
                lost_since = lost_since or self.clock.now()
                assignment.publish(self.publisher, LOADING, f"/health stopped responding: {problem}")
                if self.clock.now() - lost_since > self.pacing.health_lost_s:
                    remove_container()
                    raise ServingError(
                        f"The server was ready, then /health did not respond for {self.pacing.health_lost_s:.0f} s: {problem}"
                    )
            elif self._is_over_budget(assignment):
                raise self._over_budget()
            else:
                assignment.publish(self.publisher, follower.phase, follower.detail)
            if self.run_end.is_soon():
                raise ServingError(RUN_ENDS, retry=False)
            poll_s = min(1.0, poll_s * 1.2) if problem else self.pacing.health_poll_s
            if self.latest.wait_for_newer(assignment.version, poll_s):
                raise SupersededError

    def _take_ready(self, assignment: Assignment, drain_s: float) -> None:
        """Publish that the server responds, and store its document. The phase is last."""
        self.publisher.set_fact(SERVING_HASH_KEY, assignment.text_hash)
        self.stored.end_pause(self.publisher, assignment.asked_hash)
        before = self.stored.documents()
        if assignment.failed is None:
            ready = GoodDocument(assignment.text, assignment.document.image, f"{drain_s:g}")
            if self.stored.failed is not None or self.stored.back != ready:
                self.stored.keep_ready(ready)
        if self.stored.is_on_probation(assignment) and self._has_passed(assignment.document):
            log(f"Document {assignment.text_hash[:12]} passed its probation.")
            self.stored.pass_probation()
        is_new = self.stored.documents() != before
        if is_new:
            remove_other_models(*(kept.document for kept in self.stored.documents()))
        former = self.stored.good if self.stored.probation else None
        self.publisher.set_fact(FORMER_HASH_KEY, former.text_hash if former else "")
        self.stored.write()
        assignment.publish(self.publisher, READY)
        if is_new:
            self._remove_others(assignment.document)

    def _watch_docker(self, follower: LogFollower) -> None:
        """Notice a docker that ended while the server runs on: the next one ends the server. Then follow the log again."""
        if follower.has_ended():
            self._docker_left = docker_problem() is not None
            if not self._docker_left:
                follower.follow_again()

    def _require_running(self, document: ServingDocument) -> None:
        """Raise ServingError if the server's container has stopped."""
        state = container_state()
        if state is None:
            raise ServingError("The server stopped: its container was removed.")
        if not state.running:
            raise self._stopped(state.exit_code, document)

    def _stopped(self, exit_code: int, document: ServingDocument) -> ServingError:
        """Return the error of a server that stopped, with the log line that shows why if its secrets can be masked.

        That line ends the attempts only before the server was ready. Later it can contain a caller's text.
        """
        line = ""
        is_repeated = False
        killed = ""
        if exit_code == KILLED_EXIT_CODE:
            killed = " (killed, most likely out of memory)"
        else:
            line, is_repeated = server_error(container_log())
        text = f"The server stopped with exit code {exit_code}{killed}."
        if line and self.secrets.has_all(document):
            text = f"{line.rstrip('.')} (exit code {exit_code})"
        is_repeated = is_repeated and exit_code == ERROR_EXIT_CODE and self._ready_at is None
        return ServingError(
            text,
            retry=exit_code != USAGE_EXIT_CODE and not is_repeated,
            waits_for=WAITING_FOR_DOCKER if self._docker_left else "",
        )
