"""What is known of one stack, and of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from stacks.hooks.rollout_state import RolloutPhase

SCHEMA_VERSION: Final = 1

STATE, GOOGLE, ENDPOINT, MEASURED, SETTINGS, REFRESH = "state", "google", "endpoint", "measured", "settings", "refresh"
"""Sources of a status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnansweredSource:
    """A source that did not answer."""

    source: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudFacts:
    """What Google says of what serves: a queued resource with its node, or a Cloud Run service. None where it says nothing."""

    state: str
    """State of the queued resource, or of the service: `READY`, `DEPLOYING`, `FAILED`; `MISSING` if it does not exist."""
    state_since: str | None = None
    """RFC 3339: when the queued resource was created, or the service became what it is."""
    place: str | None = None
    """Zone or region."""
    phase: str | None = None
    """Phase that the machine published, or the reason of a service that is not ready."""
    phase_detail: str | None = None
    phase_at: str | None = None
    """RFC 3339: when the machine published it."""
    deadline: str | None = None
    """RFC 3339: when Google deletes the machine."""
    declared: str | None = None
    """Hash of the document in the state, or the revision in the state."""
    stored: str | None = None
    """Hash of the document in the machine's metadata."""
    reported: str | None = None
    """Hash of the document that the machine's phase is about."""
    running: str | None = None
    """Hash of the document whose server answers, or the revision that serves: the one with the most requests. None if nothing serves."""
    former: str | None = None
    """While the served document is on probation: hash of the good document before it, which serves again if the server ends four times."""
    machine: str | None = None
    """Full name of the TPU machine."""
    container: str | None = None
    """What the server's container gets of the TPU machine: `confined`, or less and the reason; None if the machine has not said."""
    agent_version: int | None = None
    """Version of the agent on the machine; None if it has published nothing."""
    archives: str | None = None
    """One sentence if the bucket has archives of compiled programs that the stack has not signed, and that are not used."""
    rollout_waits: bool = False
    """Whether a revision that started waits for `scripts.rollout` to get requests."""
    since: str | None = None
    """RFC 3339: when the first machine of the stack, or its service, started."""
    traffic: Mapping[str, int] | None = None
    """Percent of the requests by revision, the largest first. None is unknown, or another target."""
    rollout_phase: RolloutPhase | None = None
    """Where the roll-out of a service is; None without `cloudRun.rollout`."""
    rollout: str = ""
    """What to know of the roll-out and what to run, whole sentences; empty if there is nothing to say."""
    rollout_record: Mapping[str, object] | None = None
    """The record of the last roll-out as docs/authors/contracts.md describes it; None if there is none, or if it cannot be read."""
    age_s: float | None = None
    """Since then."""
    usd: float | None = None
    """What the stack has cost since then, past machines included."""
    usd_per_hour: float | None = None
    limits: str = ""
    """The limits that the labels carry, in words; empty without any."""
    unknown: Sequence[str] = ()
    """What Google did not tell, each a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What the server says of itself."""

    health: str
    """`ready`, or what it answers instead."""
    running_requests: float | None = None
    waiting_requests: float | None = None
    kv_use_share: float | None = None
    """Share of the KV cache in use, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFacts:
    """Planned and measured output rate of one request alone, tokens per second."""

    planned_low_tok_per_s: float | None = None
    planned_high_tok_per_s: float | None = None
    measured_tok_per_s: float | None = None
    measured_at: str | None = None
    measured_is_old: bool = False
    """Whether another image or other settings were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """The status of one stack. None is not known, or does not apply."""

    stack: str
    deployed: bool
    target: str | None = None
    model: str | None = None
    accelerator: str | None = None
    cloud: CloudFacts | None = None
    server: ServerFacts | None = None
    server_not_asked: str | None = None
    """Why the server was not asked, a sentence."""
    rate: RateFacts | None = None
    drift: Sequence[str] = ()
    """Differences between settings, state and what runs, each a sentence."""
    refreshed: bool = False
    """Whether `drift` is whole: the engine has compared every resource with Google."""
    waits: Sequence[str] = ()
    """What is waited for, each a sentence."""
    unanswered: Sequence[UnansweredSource] = ()
    next_command: str = ""

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds until the deadline, at a time in seconds since 1970."""
        from datetime import datetime  # noqa: PLC0415 - one use

        if self.cloud is None or not self.cloud.deadline:
            return None
        return max(0.0, datetime.fromisoformat(self.cloud.deadline).timestamp() - now_s)

    @property
    def health(self) -> str | None:
        """The server's health: its own word, else that of the agent on its machine, which asks it all the time."""
        if self.server is not None:
            return self.server.health
        return self.cloud.phase if self.cloud is not None and self.target == "tpu" else None

    def to_json(self, now_s: float) -> dict[str, object]:
        """Return the status in JSON types; units stand in the keys."""
        found = asdict(self)
        cloud = found["cloud"]
        if isinstance(cloud, dict):
            left_s = self.left_s(now_s)
            cloud["left_s"] = None if left_s is None else round(left_s)
        return {**found, "health": self.health}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """All stacks at one moment."""

    at_s: float
    """Seconds since 1970."""
    simulated: bool
    stacks: Sequence[StackStatus]

    @property
    def complete(self) -> bool:
        """Whether every source answered."""
        return not any(stack.unanswered for stack in self.stacks)

    def to_json(self) -> dict[str, object]:
        """Return the report in JSON types."""
        return {
            "schema_version": SCHEMA_VERSION,
            "at_s": round(self.at_s, 3),
            "simulated": self.simulated,
            "complete": self.complete,
            "stacks": [stack.to_json(self.at_s) for stack in self.stacks],
        }
