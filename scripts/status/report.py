"""Status of one stack and of all stacks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Final

from gemma_serving.contracts.stack_facts import CloudFacts, ServesNow
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.scripts.logs.api import MeasuredStart, start_json
from gemma_serving.scripts.status.price import InOut, TokenPrice

SCHEMA_VERSION: Final = 2

STATE = "state"
GOOGLE = "google"
LOST = "other resources"
AGENT = "agent"
ENDPOINT = "endpoint"
REFRESH = "refresh"
"""Sources of the status."""
HEALTHY: Final = "ready"
"""Health of a server that answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnansweredSource:
    """A source that did not respond."""

    source: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Health and load that the server reports."""

    health: str
    """`ready`, or its error response."""
    running_requests: float | None = None
    waiting_requests: float | None = None
    kv_use_share: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    tokens: InOut | None = None
    """Input and output tokens since the start of its process."""
    started_s: float | None = None
    """Start of its process in seconds since 1970. vLLM does not report it if several processes serve its API."""
    metrics: Mapping[str, object] | None = None
    """Total of every metric over its labels, and the configuration of the KV cache; None if they were not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """How to call a server, and what it was started with."""

    endpoint: str
    auth: str
    served_model: str
    max_model_len: int | None
    image: str
    connect: str | None
    """Command that connects this machine to it."""


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
    address: ServerAddress | None = None
    cloud: CloudFacts | None = None
    server: ServerFacts | None = None
    start: Answer[MeasuredStart] = field(default_factory=Absent)
    """First start of the TPU VM or the revision that serves."""
    server_not_asked: str | None = None
    """Reason why the server was not queried, as a sentence."""
    price: TokenPrice | None = None
    """Price of the tokens that were served; None before the first server starts."""
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
        return self.cloud.phase_now if self.cloud is not None and self.target == "tpu" else None

    def to_json(self, now_s: float) -> dict[str, object]:
        """Return the status in JSON types. Keys include units."""
        found = asdict(self)
        if self.cloud is not None:
            left_s, phase, idle = self.left_s(now_s), self.cloud.phase, self.cloud.idle
            found["cloud"] |= {
                "left_s": None if left_s is None else round(left_s),
                "phase": self.cloud.phase_now,
                "phase_at": None if isinstance(phase, Absent) or phase.read_at is None else phase.read_at.isoformat(),
                "idle_since": idle.value.isoformat() if isinstance(idle, Present) else None,
                "idle_unknown": idle.why if isinstance(idle, Unknown) else "",
            }
            del found["cloud"]["idle"]
        return {**found, "start": start_json(self.start), "health": self.health}


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
