"""Trial of a document before its server is ready, and its probation afterwards: starts, and conditions to pass."""

import time
from dataclasses import dataclass

from contracts.serving_document import ServingDocument
from vm_agent.base import ServingError
from vm_agent.containers import container_state
from vm_agent.follow import Assignment, LatestDocument
from vm_agent.kept import KeptState
from vm_agent.running_server import RunningServer

PROBATION_REQUESTS = 100
"""Completed requests after which a document passes its probation. Several times as many as one run of the project's smoke checks, whose
prompts are short. The first long prompt usually crashes a bad server that became ready, so users' prompts must be among them."""
PROBATION_S = 1800.0
"""Seconds after which a document passes its probation with fewer requests, but at least one. A judgement, not a measurement: long compared
with the 52 s of pauses between four stops, short compared with a run of hours, during which the former image and weights use disk space."""


@dataclass
class AgentPacing:
    """Number and duration of the agent's attempts."""

    restart_delays_s: tuple[float, ...] = (2, 10, 40, 120)
    """Delays before each restart of a server that stopped. After the last one the document has failed, unless the cause passes by itself."""
    waiting_delay_s: float = 300
    """Delay before each further attempt, until the run ends, if the cause passes by itself (vm_agent.passing)."""
    prepare_delays_s: tuple[float, ...] = (2, 10)
    """Delays for a changed document that cannot be prepared, while the old server serves."""
    trial_delays_s: tuple[float, ...] = (2,)
    """Delays for a changed document whose server stops before it was ready. Nothing serves, so the rollback comes soon."""
    probation_delays_s: tuple[float, ...] = (2, 10, 40)
    """Delays for a document on probation. The fourth stop of its server is the last one."""
    probation_requests: float = PROBATION_REQUESTS
    probation_s: float = PROBATION_S
    denied_budget_s: float = 600
    """Time during which a denied permission is not a failed attempt. Google documents that a grant can take seven minutes or more."""
    denied_delay_s: float = 15
    steady_s: float = 600
    """Ready time after which the restart delays of a server start over."""
    health_lost_s: float = 120
    """Time without a response of /health after which a server that was ready is restarted."""
    health_poll_s: float = 2.0

    def waiting_delay_of_s(self, attempt: int) -> float:
        """Return the delay before an attempt, counted from 1, of a document whose cause passes by itself."""
        return (*self.restart_delays_s, self.waiting_delay_s)[min(attempt - 1, len(self.restart_delays_s))]


@dataclass
class Trials:
    """Trial or probation status of a document, and the attempts that it allows."""

    kept: KeptState
    latest: LatestDocument
    server: RunningServer
    pacing: AgentPacing
    began_s: float = 0.0
    """Start of its attempts, on the monotonic clock."""

    def is_trial(self, assignment: Assignment) -> bool:
        """Return whether the document was never ready but another one was, so it can be rolled back."""
        back = self.kept.back
        return assignment.failed is None and back is not None and self.kept.find(assignment.text_hash) is None

    def is_on_probation(self, assignment: Assignment) -> bool:
        """Return whether the document was ready, but is not yet the rollback target."""
        probation = self.kept.probation
        return probation is not None and probation.ready.text_hash == assignment.text_hash

    def earlier_starts(self, assignment: Assignment) -> int:
        """Return the number of server starts of a document on trial or probation, including starts by earlier agents."""
        if self.kept.probation is not None and self.is_on_probation(assignment):
            return self.kept.probation.starts
        limits = self.latest.limits_name()
        return self.kept.starts_of(assignment.text_hash, limits) if self.is_trial(assignment) else 0

    def restarts(self, assignment: Assignment) -> int:
        """Return the number of allowed restarts used. On probation, the start that became ready is not counted."""
        return self.earlier_starts(assignment) - (1 if self.is_on_probation(assignment) else 0)

    def is_over_budget(self, assignment: Assignment) -> bool:
        """Return whether the time of a change that can be rolled back is over."""
        limit_s = self.latest.limits().ready_timeout_s
        can_roll_back = self.is_trial(assignment) or self.is_on_probation(assignment)
        return can_roll_back and time.monotonic() - self.began_s > limit_s

    def over_budget(self) -> ServingError:
        """Return the error of a change that exceeded its time."""
        limit_s = self.latest.limits().ready_timeout_s
        return ServingError(f"The server was not ready within {limit_s:.0f} s (tpu.readyTimeout).", retry=False)

    def delays_s(self, assignment: Assignment) -> "tuple[tuple[float, ...], bool]":
        """Return the delays before the next attempts, and whether a trial has stopped the old server, so nothing serves."""
        if self.is_on_probation(assignment):
            return self.pacing.probation_delays_s, False
        if not self.is_trial(assignment):
            return self.pacing.restart_delays_s, False
        try:
            state = container_state()
        except ServingError:
            state = None
        old_answers = state is not None and state.running and state.text_hash != assignment.text_hash
        return (self.pacing.prepare_delays_s, False) if old_answers else (self.pacing.trial_delays_s, True)

    def has_passed(self, document: ServingDocument, ready_at_s: "float | None") -> bool:
        """Return whether the ready server has served long enough for its document to become the rollback target."""
        is_old = ready_at_s is not None and time.monotonic() - ready_at_s >= self.pacing.probation_s
        answered = self.server.answered(document)
        if answered is None:
            return is_old
        return answered >= self.pacing.probation_requests or (answered > 0 and is_old)
