"""A document's trial before its server is ready, and its probation afterwards: how often it is started, and when it has passed."""

import time
from dataclasses import dataclass

from contracts.serving_document import ServingDocument
from vm_agent.base import ServingError
from vm_agent.containers import container_state
from vm_agent.follow import Assignment, LatestDocument
from vm_agent.kept import KeptState, limits_name
from vm_agent.running_server import RunningServer

PROBATION_REQUESTS = 100
"""Answers after which a document has passed its probation. Several times what a run of the project's own smoke checks sends, whose prompts are
short: the first long prompt is what usually ends a server that became ready, so callers' prompts have to be among the answers."""
PROBATION_S = 1800.0
"""Seconds after which a document has passed its probation with fewer answers, if there was one. A judgement, not a measurement: long beside the
52 s of pauses between four ends, and short beside the hours of a run, in which the former document's image and weights keep their room."""


@dataclass
class AgentPacing:
    """How often, and how long, the agent tries."""

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


@dataclass
class Trials:
    """Whether a document is on trial or on probation, and what that allows."""

    kept: KeptState
    latest: LatestDocument
    server: RunningServer
    pacing: AgentPacing
    began_s: float = 0.0
    """When its attempts began, on the monotonic clock."""

    def is_trial(self, assignment: Assignment) -> bool:
        """Whether the document was never ready and another one was: then it can be rolled back."""
        back = self.kept.back
        return assignment.failed is None and back is not None and self.kept.find(assignment.text_hash) is None

    def is_on_probation(self, assignment: Assignment) -> bool:
        """Whether the document was ready, and has not earned yet to be the one to go back to."""
        probation = self.kept.probation
        return probation is not None and probation.ready.text_hash == assignment.text_hash

    def earlier_starts(self, assignment: Assignment) -> int:
        """Return how often the server of a document on trial or probation was started, also by agents before this one."""
        if self.kept.probation is not None and self.is_on_probation(assignment):
            return self.kept.probation.starts
        limits = limits_name(self.latest.limits_text())
        return self.kept.starts_of(assignment.text_hash, limits) if self.is_trial(assignment) else 0

    def restarts(self, assignment: Assignment) -> int:
        """Return how many of the allowed restarts are used. On probation the start that became ready is none of them."""
        return self.earlier_starts(assignment) - (1 if self.is_on_probation(assignment) else 0)

    def is_over_budget(self, assignment: Assignment) -> bool:
        """Whether the time of a change that can be rolled back is over."""
        limit_s = self.latest.limits().ready_timeout_s
        can_go_back = self.is_trial(assignment) or self.is_on_probation(assignment)
        return can_go_back and time.monotonic() - self.began_s > limit_s

    def over_budget(self) -> ServingError:
        """Return the error of a change whose time is over."""
        limit_s = self.latest.limits().ready_timeout_s
        return ServingError(f"The server was not ready within {limit_s:.0f} s (tpu.readyTimeout).", retry=False)

    def delays_s(self, assignment: Assignment) -> "tuple[tuple[float, ...], bool]":
        """Return the delays before the next attempts, and whether a trial has stopped the old server, so that nothing answers."""
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
        """Whether the server that is ready has served for long enough for its document to be the one to go back to."""
        is_old = ready_at_s is not None and time.monotonic() - ready_at_s >= self.pacing.probation_s
        answered = self.server.answered(document)
        if answered is None:
            return is_old
        return answered >= self.pacing.probation_requests or (answered > 0 and is_old)
