"""Status of one stack and of all stacks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final, Literal

from gemma_serving.cloud.shortage import Shortage

SCHEMA_VERSION: Final = 2

STATE = "state"
GOOGLE = "google"
BUCKETS = "buckets"
ENDPOINT = "endpoint"
REFRESH = "refresh"
"""Sources of the status."""
ServingWord = Literal["deployed", "waiting", "ended", "no server", "not deployed", "unknown"]
INCOMPLETE: Final = "incomplete"
HEALTHY: Final = "ready"
"""Health of a server that answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnansweredSource:
    """A source that did not respond."""

    source: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudFacts:
    """Facts from Google Cloud about the server: a queued resource with its node, or a Cloud Run service. None: not reported."""

    state: str
    """State of the queued resource, or of the service: `READY`, `DEPLOYING`, `FAILED`; or `MISSING`."""
    has_ended: bool = False
    """True if Google reports that the server no longer exists. Only an update with a refresh creates it again."""
    state_since: str | None = None
    """RFC 3339: when the queued resource was created, or when the service reached its state."""
    place: str | None = None
    """Zone or region."""
    phase: str | None = None
    """Phase that the TPU VM published, or the reason of a service that is not ready."""
    phase_detail: str | None = None
    deadline: str | None = None
    """RFC 3339: when Google deletes the TPU VM."""
    form: str | None = None
    """Form of the capacity, such as `spot`, which Google may reclaim."""
    run_end: Literal["planned", "early", "preempted"] | None = None
    """End of the run of a machine that is gone: as planned, before, or of spot capacity by Google without a planned end; None if unknown."""
    planned_end: str | None = None
    """RFC 3339: planned end of an expired run; None if unknown."""
    declared: str | None = None
    """Hash of the document in the state, or the revision in the state."""
    stored: str | None = None
    """Hash of the document in the TPU VM's metadata."""
    reported: str | None = None
    """Hash of the document of the TPU VM's phase."""
    running: str | None = None
    """Hash of the served document, or the revision with the most traffic; None if none is ready."""
    former: str | None = None
    """Hash of the previous document while the served one is on probation. Four exits restore it."""
    machine: str | None = None
    """Full name of the TPU VM."""
    container: str | None = None
    """Access of the container to the TPU VM: `confined`, or another mode and its reason."""
    since: str | None = None
    """RFC 3339: when the first machine of the stack, or its service, started."""
    traffic: Mapping[str, int] | None = None
    """Traffic percentage by revision, largest first; None if unknown or not Cloud Run."""
    age_s: float | None = None
    """Seconds since `since`."""
    usd: float | None = None
    """Cost of the stack since then, including past TPU VMs."""
    usd_is_least: bool = False
    """True if a part of `usd` could not be read, so it is a lower bound."""
    usd_per_hour: float | None = None
    """Rate now, of a service while it is idle."""
    running_usd_per_hour: float | None = None
    """Rate of the slice, or of one instance of the service, while it runs."""
    limits: str = ""
    """Limits in the labels as text; empty without limits."""
    idle_since: str | None = None
    """RFC 3339: since when the TPU VM has had no request."""
    idle_unknown: str = ""
    """Reason why the idle time is unknown, as the end of a sentence; empty if it is known."""
    idle_after_s: int | None = None
    """Limit of the idle time in the labels (`tpu.idleAfter`); None without one."""
    shortage: Shortage | None = None
    """Why a request for capacity waits or failed: quota, stock or unknown, with the evidence; None in other states."""
    unknown: Sequence[str] = ()
    """Facts that Google did not return, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Health and load that the server reports."""

    health: str
    """`ready`, or its error response."""
    running_requests: float | None = None
    waiting_requests: float | None = None
    kv_use_share: float | None = None
    """Share of the KV cache in use, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServesNow:
    """What a stack serves now."""

    word: ServingWord
    """`deployed`: its server exists. `ended`: its server existed and is gone. `no server`: only other resources are in the state."""
    why: str = ""
    """Reason why nothing serves, or why that is unknown, as a sentence; empty if the server exists."""

    @property
    def may_be_gone(self) -> bool:
        """True if the state may have a server that no longer exists, so a preview must compare it with Google."""
        return self.word in {"ended", "unknown"}

    @property
    def shown(self) -> str:
        """The word for a user: a stack that has resources but no server is incomplete."""
        return INCOMPLETE if self.word == "no server" else self.word


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """Status of one stack. None: unknown or not applicable."""

    stack: str
    deployed: bool
    serves: ServesNow
    """Whether a server exists, by Google's answer or else as of the last `up`."""
    target: str | None = None
    model: str | None = None
    accelerator: str | None = None
    address: str = ""
    """Address at which a gateway reaches the server, as of the last `pulumi up`; empty without one."""
    cloud: CloudFacts | None = None
    server: ServerFacts | None = None
    server_not_asked: str | None = None
    """Reason why the server was not queried, as a sentence."""
    drift: Sequence[str] = ()
    """Differences between the state and the deployment, one sentence each."""
    refreshed: bool = False
    """True if `drift` is complete because the engine compared every resource with Google Cloud."""
    waits: Sequence[str] = ()
    """Pending operations, one sentence each."""
    unanswered: Sequence[UnansweredSource] = ()
    next_command: str = ""

    @property
    def is_shown(self) -> bool:
        """True if `gemma status` lists the stack without `--all`."""
        return self.serves.word != "not deployed" or self.cloud is not None or bool(self.waits or self.unanswered)

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds until the deadline. `now_s`: seconds since 1970."""
        if self.cloud is None or not self.cloud.deadline:
            return None
        return max(0.0, datetime.fromisoformat(self.cloud.deadline).timestamp() - now_s)

    @property
    def health(self) -> str | None:
        """Health that the server reports, else the phase of the agent on its TPU VM, which polls the server."""
        if self.server is not None:
            return self.server.health
        return self.cloud.phase if self.cloud is not None and self.target == "tpu" else None

    @property
    def is_down(self) -> bool:
        """True for a gateway whose callers get a server error. Another answer, such as 403, is about this caller."""
        return self.target == "gateway" and self.server is not None and self.server.health.startswith("HTTP 5")

    def to_json(self, now_s: float) -> dict[str, object]:
        """Return the status in JSON types. Keys include units."""
        found = asdict(self)
        cloud = found["cloud"]
        if isinstance(cloud, dict):
            left_s = self.left_s(now_s)
            cloud["left_s"] = None if left_s is None else round(left_s)
        return {**found, "health": self.health}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """Status of all stacks at one time."""

    at_s: float
    """Seconds since 1970."""
    simulated: bool
    stacks: Sequence[StackStatus]

    @property
    def complete(self) -> bool:
        """True if every source responded."""
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
