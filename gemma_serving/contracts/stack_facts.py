"""Facts about one stack and its server, which all commands read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.guest_attributes import FAILED
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.contracts.stack_lock import StackLock
from gemma_serving.contracts.three_answers import Absent, Answer, Present

Part = Literal["server", "cost", "lost", "labels", "locks"]
"""Parts that are read only for a caller that names them. `cost`: the server with its age, cost and shortage."""
ServingWord = Literal["deployed", "waiting", "ended", "no server", "not deployed", "unknown"]
INCOMPLETE: Final = "incomplete"
MISSING: Final = "MISSING"
"""State of a server that the stack's state has and Google does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a request waits or failed."""

    cause: Literal["quota", "stock", "unknown"]
    evidence: Sequence[str]
    """Clauses: Google's words, the quota, other zones."""

    @property
    def sentence(self) -> str:
        """Cause and evidence."""
        return f"{self.cause}: {'; '.join(self.evidence)}."


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
    phase: Answer[str] = field(default_factory=Absent)
    """Phase that the agent on the TPU VM published, or the reason of a service that is not ready. Unknown: the agent's last report is old."""
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
    ready: str | None = None
    """Newest revision that was ready. Another one than `stored` means that the newest did not start, or not yet."""
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
    scaling: Mapping[str, object] = field(default_factory=dict[str, object])
    """Scaling of the whole service without Google's default values. No stack sets any, so it was changed outside Pulumi."""
    age_s: float | None = None
    """Seconds since `since`."""
    usd: float | None = None
    """Cost of the stack since then, including past TPU VMs."""
    usd_last_day: float | None = None
    """Part of `usd` in the last 24 hours; None if unknown."""
    usd_is_least: bool = False
    """True if a part of `usd` could not be read, so it is a lower bound."""
    usd_per_hour: float | None = None
    """Rate now, of a service while it is idle."""
    running_usd_per_hour: float | None = None
    """Rate of the slice, or of one instance of the service, while it runs."""
    limits: str = ""
    """Limits in the labels as text; empty without limits."""
    idle: Answer[datetime] = field(default_factory=Absent)
    """Since when the TPU VM has had no request. Absent: it is busy. Unknown continues a sentence about the TPU VM."""
    exceeded: Sequence[str] = ()
    """Those that are used up, each with its use. After the end of its run, `up` does not create such a server again."""
    idle_after_s: int | None = None
    """Limit of the idle time in the labels (`tpu.idleAfter`); None without one."""
    shortage: Shortage | None = None
    """Why a request for capacity waits or failed: quota, stock or unknown, with the evidence; None in other states."""
    unknown: Sequence[str] = ()
    """Facts that Google did not return, one sentence each."""

    @property
    def phase_now(self) -> str | None:
        """The phase; None without a report, or without one that holds now."""
        return self.phase.value if isinstance(self.phase, Present) else None

    @property
    def serves_nothing(self) -> bool:
        """True if the server failed and Google reports nothing that it serves."""
        return FAILED in {self.state.lower(), self.phase_now} and self.running is None and not self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedResource:
    """A resource in a state: created, pending, or known only by the name that the stack's settings give it."""

    kind: str
    """Kind of resource (cloud.kinds)."""
    names: Sequence[str]
    """Possible full names. A queued resource can be in any of its zones."""
    project: str
    inputs: Mapping[str, object]
    outputs: Mapping[str, object] = field(default_factory=dict[str, object])
    is_recorded: bool = True
    """False if the state has none, or only its interrupted creation: a server of another owner may have one of the names."""
    has_failed: bool = False
    """True if its last creation or update failed. `up` then tries again, unless a refresh accepts what Google has."""

    def metadata(self, key: str) -> str | None:
        """Return a declared metadata value of the TPU VM; None without it."""
        # After a change that failed on the TPU VM, the engine keeps the previous inputs, and the outputs have the requested values.
        value = as_mapping(self.outputs.get("metadata") or self.inputs.get("metadata")).get(key)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServesNow:
    """State of serving of a stack, as one word with its reason."""

    word: ServingWord
    """`deployed`: its server exists. `ended`: its server existed and is gone. `no server`: only other resources are in the state."""
    why: str = ""
    """Reason why nothing serves, or why that is unknown, as a sentence; empty if the server exists."""
    cause: str = ""
    """Answer of each zone to the last request for capacity, if none granted it and the answers are known."""

    @property
    def shown(self) -> str:
        """The word for a user: a stack that has resources but no server is incomplete."""
        return INCOMPLETE if self.word == "no server" else self.word


@dataclass(frozen=True, slots=True)
class LostPart:
    """Something that a stack's state names, or that its server reads, and that Google no longer has."""

    sentence: str
    fix: str = ""
    """Command that brings it back, if `up` does not."""
    commands: Sequence[str] = ()
    """Commands to run before `up` can create it again: removals of grants of a deleted account."""


FoundPart = tuple[str, str]
"""Kind (cloud.kinds) and last part of the name of a resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """Facts about one stack. A part is None if the caller did not name it: it is then neither absent nor unknown."""

    stack: str
    state: Answer[str]
    """Time at which the state was written (RFC 3339). Absent: the backend has no such stack."""
    outputs: Answer[StackOutputs]
    """Outputs of the last complete `up`. Unknown: they are incomplete, or another version's."""
    declared: StatedResource | None = None
    """The server that the state names; where it names none and Google was asked, the one that the settings name."""
    resources: int = 0
    """Number of resources in the state."""
    parts: Sequence[FoundPart] = ()
    """Kind and name of each resource in the state that Google has under a name of its own."""
    pending: Sequence[str] = ()
    """Names of the resources whose creation an interrupted run began."""
    has_server_component: bool = False
    """True from the moment at which `up` begins with the server until a `destroy` has deleted it."""
    is_without_capacity: bool = False
    """True if an `up` got as far as the request for capacity, but none was granted."""
    refusal: Sequence[str] = ()
    """Sentences of the last `gemma up` of this folder, if no zone granted capacity, then the answer of each zone. The requests are deleted since."""
    is_interrupted: bool = False
    """True if the last `gemma up` of this folder did not end, or failed."""
    teardown_began: bool = False
    """True if a deletion of the stack did not finish."""
    held: str = ""
    """What Google holds of a deleted stack, or has released, as a sentence; empty if its state has anything but a network."""
    server: Answer[CloudFacts] | None = None
    """Google's report. Present also if the server existed and is gone (`has_ended`). Absent: no server of the stack exists."""
    lost: Answer[Sequence[LostPart]] | None = None
    """What the state names beside the server, or the server reads at a start, and no longer exists. `unread`: what may be lost too."""
    labels: Answer[Sequence[FoundResource]] | None = None
    """What Google has under the labels of the stack, and what its state names. Absent: every list was read."""
    locks: Sequence[StackLock] | None = None
    """Locks of the state, and so the run in progress. Empty also if the backend lists none."""

    @property
    def cloud(self) -> CloudFacts | None:
        """Google's report on the server; None if it is absent, unknown or was not asked for."""
        return self.server.value if isinstance(self.server, Present) else None

    @property
    def recorded(self) -> StatedResource | None:
        """The server that the state names; None without one."""
        return self.declared if self.declared is not None and self.declared.is_recorded else None

    @property
    def losses(self) -> Sequence[str]:
        """Known losses, one sentence each."""
        return [part.sentence for part in self.lost.value] if isinstance(self.lost, Present) else ()

    @property
    def fix_of_loss(self) -> str:
        """Command that brings back what no `up` does; empty without such a loss."""
        lost = self.lost.value if isinstance(self.lost, Present) else ()
        return next((part.fix for part in lost if part.fix), "")

    @property
    def is_whole(self) -> bool:
        """True if all that the state names was looked at, and exists."""
        return isinstance(self.lost, Present) and not self.lost.value and not self.lost.unread

    @property
    def is_unrecorded(self) -> bool:
        """True if Google has a server of the stack that its state does not name."""
        return self.recorded is None and self.cloud is not None

    @property
    def deployed(self) -> StackOutputs | None:
        """Outputs of the last complete `up`; None without any that can be read."""
        return self.outputs.value if isinstance(self.outputs, Present) else None
