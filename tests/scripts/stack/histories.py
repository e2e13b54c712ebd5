"""Histories of one stack, drawn from a seed, and the world that plays them: a local cloud, and the state as an engine would leave it.

Time stands still except for `advance`. What exists and what it costs is read from the local cloud's store and from a ledger of the machines that
the history made, without the code that is tested.
"""

import asyncio
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import pytest
import yaml

from gemma_serving.cloud.clock import GOOGLE_CLOCK, GoogleClock
from gemma_serving.contracts.labels import NO_LIMITS, Ownership, StackLimits
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.resource_types import CAPACITY_COMPONENT, CAPACITY_TYPE, SERVICE_COMPONENT, SERVICE_TYPE
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY
from gemma_serving.engine import runner
from gemma_serving.engine import state as states
from gemma_serving.scripts.stack import unfinished_teardown
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.hooks.run_recorder import stack_recorder
from localcloud.services import tpu
from localcloud.world.scenario import Fault, OperationDurations, Scenario, Stock, Tpu
from localcloud.world.timeline import Timeline
from tests.cloud.populated import PROJECT, World, open_world, service_template
from tests.engine_package.test_locks import dead_pid
from tests.polling import until
from tests.scripts.sample_outputs import sample_outputs
from tests.scripts.stack.claims import Truth
from tests.scripts.stack.folder_engine import LOCKS, STACKS, FolderEngine

ROOT: Final = Path(__file__).resolve().parents[3]
ZONES: Final = ("us-east5-a", "us-east5-b", "asia-northeast1-b")
REGION: Final = "us-east4"
STACK: Final = "tpu-h"
START: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
RUN_S: Final = 14_400
"""Run limit of flex-start."""
MODELS: Final = {"flex-start": "FLEX_START", "spot": "SPOT", "standard": "STANDARD"}
USD: Final = {
    ("flex-start", "us-east5"): 1.35,
    ("flex-start", "asia-northeast1"): 1.35,
    ("spot", "us-east5"): 1.4033,
    ("spot", "asia-northeast1"): 1.45707,
    ("standard", "us-east5"): 2.7,
}
"""List prices per hour of one v6e chip."""
INSTANCE_USD: Final = 3600 * (0.0001867 + 8 * 0.000018 + 32 * 0.000002)
"""List price per hour of one instance in us-east4: an L4, 8 vCPU, 32 GiB."""
METRIC_LAG_S: Final = 210
"""The local cloud's Cloud Monitoring lags by this time."""
DOCUMENT: Final = '{"schema":1}'
EVENTS: Final = {
    "tpu": {
        "up complete": 5, "up waiting": 2, "up refused": 1, "up partial": 1, "stock arrives": 2, "run ends": 4, "preempt": 3,
        "delete node": 2,
    },
    "cloud-run": {"up complete": 7, "up partial": 2},
}  # fmt: skip
"""What can happen to each target, with its weight."""
SHARED: Final = {
    "up killed before": 2, "up killed after": 3, "up lost": 3, "import": 3, "rename": 3, "rename back": 1, "version": 2,
    "stranger": 4, "time": 3, "delete server": 2, "teardown": 2, "teardown begun": 1, "teardown half": 2, "teardown killed": 2,
}  # fmt: skip
UNREADABLE: Final = ("server", "account", "login", "state", "search", "phase")


@dataclass(frozen=True, kw_only=True)
class History:
    """One history of a seed."""

    seed: int
    target: Literal["tpu", "cloud-run"]
    form: str
    zone: str
    least: int
    limits: StackLimits
    steps: tuple[tuple[str, int], ...]
    """What happens, and after how many seconds the next step follows."""
    unreadable: str = ""
    """Source that does not answer at the end; empty if all do."""

    def __str__(self) -> str:
        what = f"{self.form} in {self.zone}" if self.target == "tpu" else f"minInstances {self.least}"
        steps = "; ".join(f"{do}, {passed_s} s" for do, passed_s in self.steps)
        end = f"; unreadable: {self.unreadable}" if self.unreadable else ""
        return f"seed {self.seed}, {self.target}, {what}, {self.limits.labels}: {steps}{end}"


def drawn(seed: int) -> History:
    """Return the history of a seed."""
    random = Random(seed)  # noqa: S311 - a history, not a secret
    target = random.choice(("tpu", "tpu", "cloud-run"))
    form, region = random.choice(sorted(USD))
    events = {**EVENTS[target], **SHARED}
    ups = {event: weight for event, weight in events.items() if event.startswith("up")}
    first, *_ = random.choices(list(ups), list(ups.values()))
    rest = random.choices(list(events), list(events.values()), k=random.randint(1, 5))
    return History(
        seed=seed,
        target=target,
        form=form,
        zone=random.choice([zone for zone in ZONES if zone.startswith(region)]),
        least=random.randint(0, 1),
        limits=random.choice([NO_LIMITS, StackLimits(max_age_s=7200), StackLimits(max_usd=2)]),
        steps=tuple((do, random.choice((60, 600, 3600, 20_000))) for do in (first, *rest)),
        unreadable=random.choice(UNREADABLE) if random.random() < 0.25 else "",
    )


@dataclass(kw_only=True)
class Machine:
    """A TPU VM or a service that the history made, in the ledger. Times in seconds since 1970."""

    requested_s: float
    usd_per_hour: float
    longest_s: int | None
    started_s: float | None = None
    ended_s: float | None = None
    is_recorded: bool = False
    """True if an `up` wrote it into the record of the stack's account."""


@cache
def _dead_pid() -> int:
    return dead_pid()


@dataclass
class HistoryWorld:
    """A cloud, a backend with one stack, and the ledger."""

    history: History
    world: World
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    stack: str = STACK
    """Name in the backend. The cloud's resources have STACK."""
    resources: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Entries of the state by their names, without URN."""
    pending: list[str] = field(default_factory=list[str])
    printed: dict[str, Any] = field(default_factory=dict[str, Any])
    has_state: bool = False
    is_in_step: bool = True
    """True if nothing happened in the cloud since the last engine run that ended, except what its state foretells."""
    ledger: list[Machine] = field(default_factory=list[Machine])
    has_account: bool = False
    was_recreated: bool = False
    """True if a service was created a second time: Cloud Monitoring lacks the first one's use."""
    has_stranger: bool = False
    """True if another owner had a service of the same name: Cloud Monitoring does not tell them apart."""

    # The state

    def state_file(self, stack: str) -> Path:
        return self.folder / "backend" / STACKS / f"{stack}.json"

    @property
    def lock_file(self) -> Path:
        return self.folder / "backend" / LOCKS / self.stack / "a.json"

    def write(self) -> None:
        """Write the state as the engine would."""
        entries = {name: {**entry, "urn": self._urn(entry["type"], name)} for name, entry in self.resources.items()}
        creating = [{"resource": entries[name], "type": "creating"} for name in self.pending]
        stack = {"type": "pulumi:pulumi:Stack", "urn": self._urn("pulumi:pulumi:Stack", f"gemma-serving-{self.stack}")}
        kept = [entry for name, entry in entries.items() if name not in self.pending]
        latest = {
            "manifest": {"time": self.now.isoformat()},
            "resources": [{**stack, "outputs": self.printed}, *kept] if kept or creating or self.printed else [],
            "pending_operations": creating,
        }
        path = self.state_file(self.stack)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": 3, "checkpoint": {"latest": latest}}))
        self.has_state = True

    def _urn(self, kind: str, name: str) -> str:
        return f"urn:pulumi:{self.stack}::gemma-serving::{kind}::{name}"

    def _lock(self) -> None:
        holder = {
            "pid": _dead_pid(),
            "hostname": socket.gethostname(),
            "username": "me",
            "timestamp": self.now.isoformat(),
        }
        self.lock_file.parent.mkdir(parents=True, exist_ok=True)
        self.lock_file.write_text(json.dumps(holder))

    # Time

    @property
    def now(self) -> datetime:
        return self.world.cloud.cloud.timeline.now()

    @property
    def now_s(self) -> float:
        return self.now.timestamp()

    def pass_time(self, seconds: int) -> None:
        """Advance all times, and note which machines Google ended meanwhile."""
        self.world.cloud.cloud.timeline.advance(seconds)
        self.settle()

    def settle(self) -> None:
        """Wait until the cloud has made every transition that is due, and keep the ledger."""
        self.on_loop(tpu.Queue(self.world.cloud.cloud).advance_all)
        until(self._is_settled, "the cloud is settled")
        if not self.ledger:
            return
        last, is_up = self.ledger[-1], self._is_up()
        if is_up and last.started_s is None:
            last.started_s = self.now_s
        if not is_up and last.started_s is not None and last.ended_s is None:
            limit_s = last.started_s + last.longest_s if last.longest_s else self.now_s
            last.ended_s = min(self.now_s, limit_s)

    def _is_settled(self) -> bool:
        moving = {"CREATING", "ACCEPTED", "PROVISIONING", "SUSPENDING", "DELETING"}
        queued = [document["_machine"]["state"] for _, document in self._ours("tpu.queuedResources")]
        return not (moving & set(queued)) and not any(one.get("reconciling") for _, one in self._ours("run.services"))

    # The cloud, as its store has it

    def _ours(self, kind: str) -> Iterator[tuple[str, Any]]:
        wanted = Ownership(project="gemma-serving", stack=STACK).identity
        for name, document in self.world.cloud.cloud.store.under(kind):
            nodes = document.get("_nodes")
            labels = next(iter(nodes.values())).get("labels") if nodes else document.get("labels")
            if labels and wanted.items() <= labels.items():
                yield name, document

    def _is_up(self) -> bool:
        return any(node["state"] == "READY" for _, node in self._ours("tpu.nodes")) or any(self._ours("run.services"))

    def truth(self) -> Truth:
        """Return what exists and what it costs."""
        states = [document["_machine"]["state"] for _, document in self._ours("tpu.queuedResources")]
        is_up, is_waiting = self._is_up(), "WAITING_FOR_RESOURCES" in states
        kinds = ("tpu.queuedResources", "run.services")
        is_service = self.history.target == "cloud-run"
        rate = 0.0 if not is_up else INSTANCE_USD * self.history.least if is_service else self.usd_per_hour
        # A machine that no `up` recorded, and that Google no longer shows, is known to nobody.
        known = [one for one in self.ledger if one.is_recorded or (one is self.ledger[-1] and states)]
        usd = sum(map(self._least_usd, known)), sum(map(self._most_usd, self.ledger))
        if is_service:
            usd = self._service_usd()
        started = [one for one in known if one.started_s is not None]
        return Truth(
            word="yes" if is_up else "waiting" if is_waiting else "no",
            usd_per_hour=rate,
            usd=usd,
            names=frozenset(name for kind in kinds for name, _ in self._ours(kind)),
            age_s=(self.now_s - started[0].started_s, self.now_s - started[0].requested_s) if started else None,
        )

    @property
    def usd_per_hour(self) -> float:
        return USD[self.history.form, self.history.zone.rpartition("-")[0]]

    def _least_usd(self, one: Machine) -> float:
        end_s = self.now_s if one.ended_s is None else one.ended_s
        return 0.0 if one.started_s is None else (end_s - one.started_s) * one.usd_per_hour / 3600

    def _most_usd(self, one: Machine) -> float:
        """Return the cost up to now, or to the run limit, for a machine whose end nobody knows."""
        if one.started_s is None:
            return 0.0
        is_known = one.ended_s is None
        end_s = self.now_s if one.longest_s is None else min(self.now_s, one.started_s + one.longest_s)
        start_s = one.started_s if is_known or one.is_recorded else one.requested_s
        return max(0.0, end_s - start_s) * one.usd_per_hour / 3600

    def _service_usd(self) -> tuple[float, float]:
        """Return what the local cloud bills: one instance of each service from its start to its end, later by the lag of its metric."""
        until_s, used_s, counted_s = self.now_s - METRIC_LAG_S, 0.0, 0.0
        for one in self.ledger:  # several `up` of one service count once
            end_s = until_s if one.ended_s is None else min(until_s, one.ended_s)
            used_s += max(0.0, end_s - max(one.requested_s, counted_s))
            counted_s = max(counted_s, end_s)
        usd = used_s * INSTANCE_USD / 3600
        return usd, inf if self.has_stranger else usd

    # Steps

    def play(self) -> None:
        """Play all steps."""
        for do, passed_s in self.history.steps:
            verb, _, how = do.partition(" ")
            getattr(self, f"_{verb}")(how)
            self.settle()
            self.pass_time(passed_s)
        if self.history.unreadable:
            self._hide(self.history.unreadable)

    def _up(self, how: str) -> None:
        if self.stack != STACK:
            return  # `up` refuses a renamed stack
        self.lock_file.unlink(missing_ok=True)
        self.pending.clear()
        self._make_account()
        self._note()
        self.resources["component"] = {"type": SERVICE_COMPONENT if self._is_service else CAPACITY_COMPONENT}
        server = self._server_name()
        if server and not self._is_alive():
            self._delete_server()
            server = ""
        if not server:
            self.resources.pop("server", None)
            self.printed = {**self.printed} if how != "complete" else {}
        self._ups(how, server)
        self.settle()
        self.write()

    def _ups(self, how: str, server: str) -> None:
        if how == "killed before" or (how == "refused" and not server):
            if how == "killed before" and not server:
                self._pend()
            return
        if not server:
            self._create(is_dry=how == "waiting")
            if how == "killed after":
                self._pend()
                self.is_in_step = False
                return
            if how == "lost":
                self.is_in_step = False
                return
        self.settle()
        self._record_server()
        if how != "partial":
            self.printed = self._outputs()
            unfinished_teardown.forget(self.stack)
        self._note()
        self.is_in_step = how != "partial"

    def _import(self, _how: str) -> None:
        """An `up` imports what the state lacks, and ends before it deploys."""
        self.lock_file.unlink(missing_ok=True)
        self.pending.clear()
        if self.has_state and self.stack == STACK:
            if self._server_name():
                self._record_server()
            else:
                self.resources.pop("server", None)
            self.write()

    def _rename(self, how: str) -> None:
        after = STACK if how == "back" else "tpu-renamed"
        if not self.has_state or after == self.stack:
            return
        self.lock_file.unlink(missing_ok=True)  # the user cancels the killed command first
        self.state_file(self.stack).unlink()
        settings = self.folder / f"Pulumi.{self.stack}.yaml"
        self.stack = after
        settings.rename(self.folder / f"Pulumi.{after}.yaml")
        self.write()

    def _version(self, _how: str) -> None:
        """Another version of the project deployed the stack: its outputs have other keys."""
        if self.printed:
            self.printed.pop("plan", None)
            self.write()

    def _stranger(self, _how: str) -> None:
        """Another owner has a server of the same name, in another zone or region.

        One in the place of a server that the state names would be the stack's for the engine too, which knows it by its name.
        """
        labels = {"managed-by": "hand"}
        base = Names(project=PROJECT, stack=STACK).base
        zone = next(zone for zone in ZONES if zone != self.history.zone)
        if self._is_service:
            if not self.has_stranger:
                is_taken = self._server_name() or "server" in self.resources
                self._make_service(base, labels, "europe-west1" if is_taken else REGION)
            self.has_stranger = True
        elif not self._stored("tpu.queuedResources", f"projects/{PROJECT}/locations/{zone}/queuedResources/{base}"):
            self._make_queued(base, labels, zone)

    def _time(self, _how: str) -> None:
        """Let only time pass."""

    def _stock(self, _how: str) -> None:
        if any(
            document["_machine"]["state"] == "WAITING_FOR_RESOURCES"
            for _, document in self._ours("tpu.queuedResources")
        ):
            self.is_in_step = False
        self._set_stock(is_dry=False)

    def _run(self, _how: str) -> None:
        """Google deletes a machine with a run limit."""
        self.pass_time(RUN_S + 60)

    def _preempt(self, _how: str) -> None:
        for name, _ in list(self._ours("tpu.nodes")):
            if self.on_loop(lambda name=name: tpu.preempt(self.world.cloud.cloud, name)):
                self.is_in_step = False

    def _delete(self, what: str) -> None:
        """A user deletes the node, or the server, outside Pulumi."""
        if what == "server":
            self.is_in_step = self.is_in_step and not self._server_name()
            self._delete_server()
        for name, _ in list(self._ours("tpu.nodes")) if what == "node" else ():
            self.world.call("DELETE", "tpu", f"v2alpha1/{name}")
            self.is_in_step = False

    def _teardown(self, how: str) -> None:
        """Tear down as `gemma teardown` does, as far as `how` says: `begun`, `half` or `killed` between cloud and state; or to its end."""
        if not self.has_state and not how:
            return
        if self.has_state:
            unfinished_teardown.remember(states.read(self.stack))
        self.lock_file.unlink(missing_ok=True)
        if how == "begun":
            return
        self._delete_server()
        if how == "killed":
            self.is_in_step = False
            self._lock()
            return
        self.pending.clear()
        self.resources.pop("server", None)
        self.resources.pop("component", None)
        if not how:
            self._end_teardown()
        if self.has_state:
            self.write()
        self.is_in_step = True

    def _end_teardown(self) -> None:
        if self.has_account:
            email = Names(project=PROJECT, stack=STACK).account_email
            self.world.call("DELETE", "iam", f"v1/projects/{PROJECT}/serviceAccounts/{email}")
        self.has_account, self.was_recreated = False, False
        self.resources.clear()
        self.printed = {}
        self.ledger.clear()
        unfinished_teardown.forget(self.stack)

    def _hide(self, source: str) -> None:
        """Let a source not answer from now on."""
        methods = {
            "server": ("run.projects.locations.services.get",)
            if self._is_service
            else ("tpu.projects.locations.*.get",),
            "account": ("iam.projects.serviceAccounts.*",),
            "phase": ("tpu.projects.locations.nodes.getGuestAttributes",),
            "search": ("tpu.projects.locations.queuedResources.list", "run.projects.locations.services.list"),
        }
        if source == "state":
            # Only the state of a renamed stack knows the name in the labels, so without it no command finds its resources.
            if self.has_state and self.stack == STACK:
                self.state_file(self.stack).write_text('{"version": 3, "checkpoint": {')
        elif source == "login":
            self.monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "expired")
        else:
            faults = [Fault(method=method, count=10**6, status=403) for method in methods[source]]
            cloud = self.world.cloud.cloud
            cloud.scenario = cloud.scenario.model_copy(update={"faults": tuple(faults)})

    # Parts of steps

    @property
    def _is_service(self) -> bool:
        return self.history.target == "cloud-run"

    def on_loop(self, work: Any) -> Any:
        """Run a function in the cloud's loop, which owns it."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.world.cloud.loop).result(60)

    def _stored(self, kind: str, name: str) -> bool:
        return self.world.cloud.cloud.store.get(kind, name) is not None

    def _server_name(self) -> str:
        kind = "run.services" if self._is_service else "tpu.queuedResources"
        return next((name for name, _ in self._ours(kind)), "")

    def _is_alive(self) -> bool:
        waiting = [document["_machine"]["state"] for _, document in self._ours("tpu.queuedResources")]
        return self._is_up() or "WAITING_FOR_RESOURCES" in waiting

    def _set_stock(self, *, is_dry: bool) -> None:
        cloud = self.world.cloud.cloud
        stock = {form: Stock(chips=0) for form in MODELS.values()} if is_dry else {}
        zones = {zone: Tpu().zones[zone].model_copy(update={"stock": stock}) for zone in ZONES}
        cloud.scenario = cloud.scenario.model_copy(update={"tpu": Tpu(zones=zones)})

    def _make_account(self) -> None:
        names, words = Names(project=PROJECT, stack=STACK), Ownership(project="gemma-serving", stack=STACK).description
        if not self.has_account:
            self.world.account(names.account_id, words)
            self.has_account = True
        inputs = {"project": PROJECT, "accountId": names.account_id, "description": words}
        self.resources["account"] = {
            "type": "gcp:serviceaccount/account:Account",
            "custom": True,
            "id": f"projects/{PROJECT}/serviceAccounts/{names.account_email}",
            "inputs": inputs,
            "outputs": inputs,
        }

    def _note(self) -> None:
        """Keep the record of the machines, as the hooks of an `up` do."""
        if self.has_account:
            stack_recorder(stack_settings(STACK, project=PROJECT), STACK).note()
            if self.ledger and self._server_name():
                self.ledger[-1].is_recorded = True

    def _create(self, *, is_dry: bool) -> None:
        names = Names(project=PROJECT, stack=STACK)
        labels = dict(Ownership(project="gemma-serving", stack=STACK, limits=self.history.limits).labels)
        if self._is_service:
            self.was_recreated = self.was_recreated or bool(self.ledger)
            others = f"projects/{PROJECT}/locations/{REGION}/services/{names.base}"
            if self._stored("run.services", others):
                self.world.call("DELETE", "run", f"v2/{others}")  # Google would reject the name
            self._make_service(names.base, labels, REGION)
        else:
            self._set_stock(is_dry=is_dry)
            name = f"projects/{PROJECT}/locations/{self.history.zone}/queuedResources/{names.base}"
            self._make_queued(names.base, labels, self.history.zone)
            until(lambda: self._stored("tpu.queuedResources", name), "the request exists")
        has_limit = not self._is_service and self.history.form == "flex-start"
        usd = INSTANCE_USD if self._is_service else self.usd_per_hour
        self.ledger.append(Machine(requested_s=self.now_s, usd_per_hour=usd, longest_s=RUN_S if has_limit else None))

    def _make_queued(self, name: str, labels: Mapping[str, str], zone: str) -> None:
        metadata = {DOCUMENT_METADATA_KEY: DOCUMENT, "enable-guest-attributes": "TRUE"}
        form = MODELS[self.history.form]
        self.world.queued(name, labels, zone, active=False, form=form, acceleratorType="v6e-1", metadata=metadata)

    def _make_service(self, name: str, labels: Mapping[str, str], region: str) -> None:
        self.world.service(name, labels, region, minInstanceCount=self.history.least)
        full = f"projects/{PROJECT}/locations/{region}/services/{name}"
        until(lambda: not self.world.call("GET", "run", f"v2/{full}").get("reconciling"), "the service is ready")

    def _delete_server(self) -> None:
        for name, _ in list(self._ours("run.services")):
            self.world.call("DELETE", "run", f"v2/{name}")
            until(lambda name=name: not self._stored("run.services", name), "the service is gone")
        for name, _ in list(self._ours("tpu.queuedResources")):
            self.world.call("DELETE", "tpu", f"v2alpha1/{name}?force=true")
            until(lambda name=name: not self._stored("tpu.queuedResources", name), "the request is gone")
        self.settle()

    def _inputs(self) -> dict[str, object]:
        name = Names(project=PROJECT, stack=STACK).base
        labels = dict(Ownership(project="gemma-serving", stack=STACK, limits=self.history.limits).labels)
        if self._is_service:
            given = {"project": PROJECT, "location": REGION, "name": name, "labels": labels}
            return {**given, "template": service_template(minInstanceCount=self.history.least)}
        return {
            "project": PROJECT,
            "zones": list(ZONES),
            "queuedResourceId": name,
            "acceleratorType": "v6e-1",
            "provisioningModel": self.history.form,
            "labels": labels,
            "metadata": {DOCUMENT_METADATA_KEY: DOCUMENT},
        }

    def _pend(self) -> None:
        self.resources["server"] = {"type": self._type, "custom": True, "inputs": self._inputs()}
        self.pending.append("server")
        self._lock()

    @property
    def _type(self) -> str:
        return SERVICE_TYPE if self._is_service else CAPACITY_TYPE

    def _record_server(self) -> None:
        """Record the server with Google's answer, as the provider does."""
        name = self._server_name()
        api, version = ("run", "v2") if self._is_service else ("tpu", "v2alpha1")
        document = self.world.call("GET", api, f"{version}/{name}")
        if self._is_service:
            outputs = {
                "uri": f"https://{STACK}.a.run.app",
                "latestCreatedRevision": document.get("latestCreatedRevision"),
            }
        else:
            zone = name.split("/")[3]
            node = self.world.cloud.cloud.store.get("tpu.nodes", f"{name.replace('queuedResources', 'nodes')}-node")
            ends = (node or {}).get("schedulingConfig", {}).get("terminationTimestamp")
            outputs = {
                "name": name,
                "zone": zone,
                "state": document["state"]["state"],
                "nodeName": f"{name.replace('queuedResources', 'nodes')}-node",
                "provisioningModelInUse": self.history.form,
                **({"deadline": ends} if ends else {}),
            }
        inputs = self._inputs()
        entry = {"type": self._type, "custom": True, "id": name, "inputs": inputs, "outputs": {**inputs, **outputs}}
        self.resources["server"] = entry

    def _outputs(self) -> dict[str, Any]:
        made = self.resources["server"]["outputs"]
        plan = sample_outputs()["plan"]
        usd = INSTANCE_USD if self._is_service else self.usd_per_hour
        kind = "L4" if self._is_service else "v6e-1"
        plan = {**plan, "accelerator": kind, "cost": {**plan["cost"], "usdPerHour": usd}}
        if self._is_service:
            return sample_outputs(project=PROJECT, plan=plan, location=REGION)
        end = {"deadline": made["deadline"]} if "deadline" in made else {}
        where = {"location": made["zone"], "state": made["state"], "provisioning": self.history.form}
        return sample_outputs(project=PROJECT, plan=plan, target="tpu", auth="tunnel", **where, **end)


SCENARIO: Final = Scenario(
    operations=OperationDurations(instant=True), tpu=Tpu(zones={zone: Tpu().zones[zone] for zone in ZONES})
)


@contextmanager
def playing(history: History, folder: Path) -> Iterator[HistoryWorld]:
    """Play a history, and yield the world after it. This process then uses the world's cloud and backend."""
    with pytest.MonkeyPatch.context() as patch:
        # Time stands still; the lifetimes and the time stamps of the cloud, and the clock of the commands, follow `advance`.
        patch.setattr(Timeline, "life_s", lambda timeline: START.timestamp() + timeline.advanced_s)
        patch.setattr(
            Timeline, "now", lambda timeline: datetime.fromtimestamp(START.timestamp() + timeline.advanced_s, UTC)
        )
        with open_world(SCENARIO, speed=1e-9) as world, pytest.MonkeyPatch.context() as inner:
            inner.setattr(GoogleClock, "see", lambda *_: None)
            inner.setattr(GOOGLE_CLOCK, "_ahead", GOOGLE_CLOCK._ahead * 0)
            inner.setattr(GOOGLE_CLOCK, "local_now", world.cloud.cloud.timeline.now)
            inner.chdir(folder)
            inner.setenv("PULUMI_BACKEND_URL", f"file://{folder / 'backend'}")
            inner.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
            inner.setattr(runner, "pulumi", lambda: "pulumi")
            one = HistoryWorld(history, world, folder, inner)
            inner.setattr(runner, "run", FolderEngine(folder, STACK).run)
            _write_settings(history, folder)
            one.play()
            yield one


def _write_settings(history: History, folder: Path) -> None:
    (folder / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    shipped = ROOT / f"Pulumi.{'tpu-v6e1' if history.target == 'tpu' else 'l4-12b-qat'}.yaml"
    document = yaml.safe_load(shipped.read_text())
    if history.target == "tpu":
        tpu_block = document["config"]["gemma-serving:tpu"]
        tpu_block |= {"zones": list(ZONES), "provisioning": history.form}
        if history.form != "flex-start":
            tpu_block.pop("maxRunDuration")
    (folder / f"Pulumi.{STACK}.yaml").write_text(yaml.safe_dump(document))
