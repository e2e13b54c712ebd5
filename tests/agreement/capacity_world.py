"""The provider against the local cloud's own TPU and Compute Engine services, in one process and in virtual time.

`HttpTpuTransport` and the local cloud's server are left out: a call is routed and validated by the discovery documents, and reaches the service's
handler. Each call moves the cloud's time to the virtual time of the provider's event loop, so hours of waiting take milliseconds. What must hold at
each call is `CapacityWorld.watch`; what must hold after an operation is in `test_capacity_schedules`.
"""

import asyncio
import heapq
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from gcp_tpu_provider.desired_state import urn_hash
from gcp_tpu_provider.errors import NoAnswerError
from gcp_tpu_provider.http_transport import google_error
from gcp_tpu_provider.tests.harness import URN, Aborted, Entry, FakeEngine
from gcp_tpu_provider.transport import COMPUTE_PATH, Pacing
from localcloud import services
from localcloud.rest import validation
from localcloud.rest.call import Call, Caller, Handler
from localcloud.rest.discovery import document_for
from localcloud.rest.errors import CloudError, ErrorStyle
from localcloud.server.app import RuntimeFactory
from localcloud.services import compute_instances, orgpolicies, tpu
from localcloud.services.projects import ensure_project
from localcloud.services.tpu_requests import model_of
from localcloud.services.tpu_stock import INSTANCES, NODES
from localcloud.tests import idle_cloud
from localcloud.world.cloud import Cloud
from localcloud.world.scenario import Scenario
from localcloud.world.timeline import Clock

PROJECT: Final = "local-project"
CALL_S: Final = 0.2
"""Virtual seconds of a call."""
PACING: Final = Pacing(poll_most_s=60)
GRANTED: Final = frozenset({"PROVISIONING", "ACTIVE", "STAGING", "RUNNING"})
"""States of queued resources and instances in which a request has capacity."""
SERVING: Final = frozenset({"ACTIVE", "RUNNING"})
_FREE: Final = frozenset(
    {"HIDDEN", "CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PENDING", "FAILED", "SUSPENDED", "TERMINATED"}
)
"""States that cost nothing. Each other state is counted, a deletion in progress too."""
_FROZEN: Final = 1e-9


class KilledError(Exception):
    """The process ends here."""


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The next call of a verb gets no answer. `after_s`: when it takes effect; 0: at once; None: never."""

    verb: str
    after_s: float | None
    status: int = 0
    """HTTP status of the answer; 0: a broken connection."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """One request of ours in the cloud. `identity` differs between two requests with the same name."""

    name: str
    state: str
    identity: str
    model: str

    @property
    def zone(self) -> str:
        """The zone in its name."""
        return self.name.split("/")[3]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One call of the provider."""

    method: str
    path: str
    body: Any

    @property
    def creates(self) -> tuple[str, str] | None:
        """Google's provisioning model and the zone that a creation requests; None for another call."""
        if self.method != "POST" or not self.path.split("?")[0].endswith(("/queuedResources", "/instances")):
            return None
        given = self.body.get("scheduling") or self.body
        return str(given["provisioningModel"]), self.path.split("/")[-2]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def held_in(cloud: Cloud) -> list[Held]:
    """Return our requests that the cloud shows or hides, with their states."""
    owner, found = urn_hash(URN), list[Held]()
    for name, document in cloud.store.under(tpu.QUEUED):
        if owner in json.dumps(document["_nodes"]):
            state, model = document["_machine"]["state"], model_of(document)
            found.append(Held(name=name, state=state, identity=str(document["createTime"]), model=model))
    for name, document in cloud.store.under(INSTANCES):
        if owner in json.dumps(document.get("labels")):
            state = "HIDDEN" if "_hidden_until_s" in document else str(document["status"])
            model = str(document["_request"]["model"])
            found.append(Held(name=name, state=state, identity=str(document["id"]), model=model))
    return found


class LocalTransport:
    """The transport: calls of the provider reach the handlers of the local cloud."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.lost: list[Lost] = []
        self.on_call: Callable[[Sent], None] | None = None
        self.late: set[str] = set()
        """Identities of requests that appeared after the provider had given them up: nobody could see them before."""
        self._handlers: dict[str, Handler] = services.handlers(cloud, ["tpu", "compute", "serviceusage"])
        self._late: list[tuple[float, int, Call]] = []
        self._order = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen_s = 0.0

    async def call(
        self, method: str, path: str, *, query: Any = None, body: Any = None, creation: bool = False
    ) -> dict[str, Any]:
        """Make one call: kills, lost answers and late effects as the schedule says."""
        del creation
        await asyncio.sleep(CALL_S)
        self.keep_up()
        if self.on_call is not None:
            self.on_call(Sent(method=method, path=path, body=body or {}))
        call = self._routed(method, path, query or {}, body)
        fault = next((item for item in self.lost if item.verb == method), None)
        if fault is None:
            answer = self._answer(call)
            await asyncio.sleep(0)  # Ctrl-C at a call arrives after its effect and before its answer
            return answer
        self.lost.remove(fault)
        if fault.after_s == 0:
            with suppress(CloudError):
                self._handlers[call.method.id](call)
        elif fault.after_s is not None:
            due_s = self.cloud.timeline.simulated_s() + fault.after_s
            heapq.heappush(self._late, (due_s, next(self._order), call))
        if fault.status:
            raise _refusal(CloudError.injected(fault.status), call)
        raise NoAnswerError(f"{method} {path}", "connection reset", sent=True)

    def now(self) -> datetime:
        """Return Google's time."""
        return self.cloud.timeline.now()

    async def close(self) -> None:
        """Keep nothing open."""

    def keep_up(self) -> None:
        """Move the cloud's time to that of the running event loop, which the harness makes anew for each operation."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._seen_s = loop, 0.0
        passed_s, self._seen_s = loop.time() - self._seen_s, loop.time()
        self.advance(passed_s)

    def advance(self, seconds: float) -> None:
        """Let time pass, with what takes effect late. Needs a running event loop."""
        timeline = self.cloud.timeline
        end_s = timeline.simulated_s() + seconds
        while self._late and self._late[0][0] <= end_s:
            due_s, _, call = heapq.heappop(self._late)
            timeline.advance(max(0.0, due_s - timeline.simulated_s()))
            before = {item.identity for item in held_in(self.cloud)}
            with suppress(CloudError):
                self._handlers[call.method.id](call)
            self.late |= {item.identity for item in held_in(self.cloud)} - before
        timeline.advance(max(0.0, end_s - timeline.simulated_s()))

    def look(self) -> None:
        """Let the services make the transitions that are due: they do so when they are read."""
        tpu.Queue(self.cloud).advance_all()
        self.ask("GET", f"{COMPUTE_PATH}v1/projects/{PROJECT}/aggregated/instances")

    def ask(self, verb: str, path: str, body: Any = None) -> dict[str, Any]:
        """Make a call of another client now. Needs a running event loop."""
        return self._answer(self._routed(verb, path, {}, body))

    def pending(self) -> set[int]:
        """Return the numbers of the late calls that have not taken effect."""
        return {number for _, number, _ in self._late}

    def pending_s(self) -> float:
        """Return after how many seconds the last late call takes effect."""
        return max((due_s for due_s, _, _ in self._late), default=0.0) - self.cloud.timeline.simulated_s()

    def _routed(self, verb: str, path: str, query: Any, body: Any) -> Call:
        api = "compute" if path.startswith(COMPUTE_PATH) else "tpu"
        document = document_for(api, path)
        found = None if document is None else document.match(verb, path)
        assert document is not None, path
        assert found is not None, f"{verb} {path}"
        method, bound = found
        validation.path_parameters(document, method, bound)
        checked = validation.query_parameters(document, method, {key: [value] for key, value in query.items()})
        sent = validation.request_body(document, method, deepcopy(body) if body is not None else {})
        caller = Caller(email=self.cloud.operator, operator=True)
        return Call(
            document=document,
            method=method,
            path=bound,
            query=checked,
            body=sent,
            caller=caller,
            http=cast("Any", None),
        )

    def _answer(self, call: Call) -> dict[str, Any]:
        try:
            orgpolicies.enforce(self.cloud, call, PROJECT)
            return deepcopy(cast("dict[str, Any]", self._handlers[call.method.id](call)))
        except CloudError as error:
            raise _refusal(error, call) from None


def _refusal(error: CloudError, call: Call) -> Exception:
    style = ErrorStyle.COMPUTE if call.document.api == "compute" else ErrorStyle.RPC
    return google_error(error.code, json.dumps(error.body(style)), None, PROJECT)


@dataclass
class Ending:
    """What happens at the n-th call of a step: a kill before or after it, Ctrl-C, or a preemption. `at` 0 is the first creation."""

    world: "CapacityWorld"
    how: str
    at: int
    seen: int = 0
    armed: bool = False
    killed: bool = False
    kept: Entry | None = None
    """The engine's state at the kill, which is what the next process reads."""

    def __call__(self, call: Sent) -> None:
        if self.killed or self.armed:
            self._kill()
        self.world.watch(call)
        if self.world.violations:
            self._kill()  # the schedule has failed, and no wait needs to end
        self.seen += 1
        is_here = self.seen == self.at or (self.at == 0 and call.creates is not None)
        if not self.how or not is_here:
            return
        if self.how == "cancel":
            self.world.engine.provider.cancel_all()
        elif self.how == "preempt":
            self.world.preempt_now()
        elif self.how == "kill after":
            self.armed = True
        else:
            self._kill()

    def _kill(self) -> NoReturn:
        if not self.killed:
            self.killed, self.kept = True, deepcopy(self.world.engine.state)
        raise KilledError


@dataclass
class CapacityWorld:
    """A local cloud, the provider on it, and the state of one Pulumi resource."""

    folder: Path
    scenario: Scenario
    prices: Mapping[tuple[str, str], float]
    """(Google's provisioning model, zone) -> USD per hour."""
    ceiling_usd: float = 0.0
    """USD per hour, of the program of the present step."""
    limit_s: float = 0.0
    """Virtual seconds in which the present step ends."""
    requests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(Google's provisioning model, zone) of each creation of the present step, in order."""
    calls: list[Sent] = field(default_factory=list[Sent])
    """Calls of the present step."""
    preempted: set[str] = field(default_factory=set[str])
    violations: list[str] = field(default_factory=list[str])
    runtimes: RuntimeFactory = idle_cloud.idle_runtimes
    transport: LocalTransport = field(init=False)
    engine: FakeEngine = field(init=False)
    _highest_usd: float = 0.0
    _pending_before: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        clock = Clock(speed=_FROZEN)
        self.cloud = Cloud(state=self.folder, project=PROJECT, clock=clock, scenario=self.scenario)
        self.cloud.attach(self.runtimes)
        ensure_project(self.cloud, PROJECT)
        self.transport = LocalTransport(self.cloud)
        self.engine = FakeEngine(cast("Any", self.transport), PACING)

    def close(self) -> None:
        """Close the store."""
        self.cloud.store.close()

    def watch(self, call: Sent) -> None:
        """Note what this call violates.

        1. A step ends.
        2. No request is sent whose form costs more in its zone than the ceiling.
        3. A request is sent only when nothing else of ours exists, and when no creation of this step that got no answer can still take effect.
        4. All that is billed together costs no more than the ceiling under which it was requested.

        What appears after it was given up (`LocalTransport.late`) is outside 3 and 4, because nobody can see it before. Each such one meets 2.
        """
        self.calls.append(call)
        if asyncio.get_running_loop().time() > self.limit_s:
            self.violations.append(f"a wait does not end: {call} after {self.limit_s:.0f} s")
        held = held_in(self.cloud)
        self.transport.late |= {item.identity for item in held if item.state == "HIDDEN"}
        known = [item for item in held if item.identity not in self.transport.late]
        if call.creates is not None:
            self.requests.append(call.creates)
            self._highest_usd = max(self._highest_usd, self.ceiling_usd)
            if self.prices[call.creates] > self.ceiling_usd:
                self.violations.append(f"a request above the ceiling of ${self.ceiling_usd}: {call.creates}")
            if self.transport.pending() - self._pending_before:
                self.violations.append(f"a request for {call.creates} although an earlier one may still take effect")
            if known:
                self.violations.append(f"a request for {call.creates} beside {known}")
        billed = [item for item in known if item.state not in _FREE]
        if sum(self.prices[item.model, item.zone] for item in billed) > self._highest_usd:
            self.violations.append(f"together above the ceiling of ${self._highest_usd}: {billed}")

    def pass_time(self, seconds: float) -> None:
        """Let time pass between two operations."""

        async def wait() -> None:
            self.transport.keep_up()
            self.transport.advance(seconds)
            self.transport.look()

        self.engine.run(wait())

    def settle(self) -> None:
        """Let everything that is late take effect, and every grant that was pending."""
        self.pass_time(max(0.0, self.transport.pending_s()) + 1.0)
        self.pass_time(1500.0)

    def held(self) -> list[Held]:
        """Return our requests that the cloud shows or hides, with their states."""
        return held_in(self.cloud)

    def granted(self) -> list[Held]:
        """Return our requests that have capacity."""
        return [item for item in self.held() if item.state in GRANTED]

    def left(self) -> list[str]:
        """Return what is ours and visible: queued resources, nodes and instances."""
        nodes = [
            name for name, node in self.cloud.store.under(NODES) if urn_hash(URN) in json.dumps(node.get("labels"))
        ]
        return [*(item.name for item in self.held() if item.state != "HIDDEN"), *nodes]

    def in_use(self) -> Held | None:
        """Return the capacity that the state names as ACTIVE, if the cloud still has it."""
        state = self.engine.state
        if state is None or state.outputs.get("state") != "ACTIVE":
            return None
        serving = [item for item in self.held() if item.state in SERVING]
        return next((item for item in serving if item.name == state.outputs["name"]), None)

    def preempt(self) -> bool:
        """Preempt our running node or spot instance between two operations."""

        async def preempt() -> bool:
            self.transport.keep_up()
            return self.preempt_now()

        return self.engine.run(preempt())

    def preempt_now(self) -> bool:
        """Preempt our running node or spot instance. Needs a running event loop. Returns whether there was one."""
        before = len(self.preempted)
        for item in [item for item in self.held() if item.state in SERVING]:
            if "/instances/" in item.name:
                done = compute_instances.preempt(self.cloud, item.name)
            else:
                document = self.cloud.store.get(tpu.QUEUED, item.name) or {}
                parent = item.name.rpartition("/queuedResources/")[0]
                nodes = [tpu.preempt(self.cloud, f"{parent}/nodes/{node}") for node in document["_nodes"]]
                done = any(nodes)
            if done:
                self.preempted.add(item.identity)
        return len(self.preempted) > before

    def play(self, what: Callable[[], Any], *, lost: Sequence[Lost] = (), how: str = "", at: int = 0) -> str:
        """Do one operation. Return `done`, the message of its failure, or `killed`, after which the state is what the engine had kept."""
        ending = Ending(self, how, at)
        self._pending_before = self.transport.pending()
        self.requests.clear()
        self.calls.clear()
        self.transport.lost[:] = lost
        self.transport.on_call = ending
        try:
            what()
            outcome = "done"
        except Aborted as error:
            outcome = error.message
        except KilledError:
            outcome = "killed"
        finally:
            self.transport.on_call = None
            self.transport.lost.clear()
        if ending.killed:
            self.engine.state, outcome = ending.kept, "killed"
        return outcome
