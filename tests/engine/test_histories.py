"""Drawn histories through the real engine: after each, the commands agree with the cloud about what exists and what it costs, or do not know.

They follow one another on one stack, so each begins with what the earlier ones left.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from random import Random

import pytest

from gemma_serving.contracts.labels import Ownership
from tests.engine.conftest import PROJECT, Workspace, until
from tests.scripts.stack import claims as said
from tests.scripts.stack.claims import Truth

STACK, RENAMED = "tpu-v6e1", "tpu-renamed"
HISTORIES = 20
USD_PER_HOUR, RUN_S = 1.35, 14_400
QUEUED = "v2alpha1/projects/{project}/locations/-/queuedResources"
NODES = "v2alpha1/projects/{project}/locations/-/nodes"
CREATE = "tpu.projects.locations.queuedResources.create"
OFTEN = ("up", "killed", "waiting", "run ends", "preempt")
"""Events that are drawn twice as often."""
SETTLED = {"ACTIVE", "SUSPENDED", "FAILED"}

pytestmark = [pytest.mark.engine, pytest.mark.long]


@dataclass(kw_only=True)
class Machine:
    """A TPU VM that was seen. Times in seconds since 1970."""

    requested_s: float
    started_s: float
    seen_s: float
    """Last time at which it was seen."""
    is_recorded: bool = False
    """True if an `up` wrote it into the record of the stack's account."""


@dataclass
class EngineWorld:
    """The stack, and what was seen of its machines."""

    workspace: Workspace
    stack: str = STACK
    has_state: bool = True
    is_in_step: bool = True
    machines: dict[str, Machine] = field(default_factory=dict[str, Machine])
    """By the time of their creation."""
    has_stock: bool = True
    """False while no zone has capacity, so a request waits until it has."""

    # The cloud

    def queued(self) -> dict[str, dict]:
        """Return the stack's queued resources by their names."""
        wanted = Ownership(project="gemma-serving", stack=STACK).identity.items()
        found = self.workspace.get("tpu", QUEUED.format(project=PROJECT)).get("queuedResources", [])
        labels = {one["name"]: one["tpu"]["nodeSpec"][0]["node"].get("labels", {}) for one in found}
        return {one["name"]: one for one in found if wanted <= labels[one["name"]].items()}

    def nodes(self) -> list[dict]:
        """Return its TPU VMs that run."""
        requests = self.queued()
        found = self.workspace.get("tpu", NODES.format(project=PROJECT)).get("nodes", [])
        return [one for one in found if one["state"] == "READY" and one.get("queuedResource") in requests]

    def now_s(self) -> float:
        return seconds(self.workspace.admin("clock")["now"])

    def settle(self) -> None:
        """Wait until no request moves, and note the machines."""
        at_rest = SETTLED if self.has_stock else {*SETTLED, "WAITING_FOR_RESOURCES"}
        until(lambda: all(one["state"]["state"] in at_rest for one in self.queued().values()), "no request moves")
        requests = self.queued()
        for one in self.nodes():
            start_s, request = seconds(one["createTime"]), requests[one["queuedResource"]]
            new = Machine(requested_s=seconds(request["createTime"]), started_s=start_s, seen_s=start_s)
            self.machines.setdefault(one["createTime"], new).seen_s = self.now_s()

    def truth(self, asked_s: float) -> Truth:
        """Return what exists, and what it costs between `asked_s` and now."""
        requests, running = self.queued(), {one["createTime"] for one in self.nodes()}
        states, now_s = {one["state"]["state"] for one in requests.values()}, self.now_s()
        least = most = 0.0
        for created, one in self.machines.items():
            is_up = created in running
            if is_up or one.is_recorded:
                least += (asked_s if is_up else one.seen_s) - one.started_s
            most += (now_s if is_up else min(now_s, one.started_s + RUN_S)) - one.requested_s
        return Truth(
            word="yes" if running else "waiting" if "WAITING_FOR_RESOURCES" in states else "no",
            usd_per_hour=USD_PER_HOUR if running else 0.0,
            usd=(max(0.0, least) * USD_PER_HOUR / 3600, most * USD_PER_HOUR / 3600),
            names=frozenset(requests),
            age_s=None,
        )

    # What happens

    def events(self) -> dict[str, Callable[[], None]]:
        """Return what can happen now."""
        requests, is_up = self.queued(), bool(self.nodes())
        can: dict[str, Callable[[], None]] = {"teardown": self.teardown, "time": self.wait}
        if self.stack == STACK:
            can |= {"up": self.up, "rename": lambda: self.rename(RENAMED)}
            if not requests:
                can |= {"killed": self.killed, "lost": self.lost, "waiting": self.waiting}
        else:
            can |= {"rename back": lambda: self.rename(STACK)}
        if is_up:
            can |= {"run ends": self.run_ends, "preempt": self.preempt}
        if requests:
            can |= {"delete": self.delete, "interrupted teardown": self.interrupted_teardown}
        return can

    def up(self) -> None:
        before = self.queued()
        done = self.workspace.script("up", "--stack", self.stack, "--yes", expect=None)
        self.settle()
        visible = {seconds(one["createTime"]) for one in (*before.values(), *self.queued().values())}
        for one in self.machines.values():  # nobody can record a machine whose request was deleted before
            one.is_recorded = one.is_recorded or (one.seen_s > one.started_s and one.requested_s in visible)
        self.is_in_step = done.code == 0

    def waiting(self) -> None:
        """No zone has capacity, and `up` does not wait for it."""
        self.workspace.stock(0)
        self.has_stock = False
        self.workspace.configure(STACK, **{"tpu.waitFor": "accepted"})
        self.up()
        self.workspace.configure(STACK, **{"tpu.waitFor": "active"})
        self.workspace.stock(None)
        self.has_stock = True
        self.is_in_step = False

    def killed(self) -> None:
        hang = {"method": CREATE, "count": 99, "action": "hang", "when": "after", "hang_s": 600}
        self.workspace.change_scenario({"faults": [hang]})
        up = self.workspace.begin_up(STACK)
        try:
            until(lambda: self.queued() or up.poll() is not None, "the request or the end")
        finally:
            with suppress(ProcessLookupError):  # a lock of a killed command ended it
                os.killpg(up.pid, signal.SIGKILL)
            up.wait()
            self.workspace.change_scenario({"faults": []})
        self.is_in_step = False

    def lost(self) -> None:
        """The first answer to the creation is lost. The provider finds the request."""
        fault = {"method": CREATE, "status": 500, "when": "after", "count": 1}
        self.workspace.change_scenario({"faults": [fault]})
        self.up()
        self.workspace.change_scenario({"faults": []})

    def rename(self, after: str) -> None:
        done = self.workspace.pulumi("stack", "rename", after, "--stack", self.stack, expect=None)
        if done.code == 0:  # a lock of a killed command blocks it
            self.stack = after

    def run_ends(self) -> None:
        self.workspace.advance(RUN_S + 60)

    def preempt(self) -> None:
        for one in self.nodes():
            self.workspace.post("admin/preempt", {"node": one["name"]})
        self.is_in_step = False

    def delete(self) -> None:
        """A user deletes the request outside Pulumi."""
        for name in self.queued():
            self.workspace.call("DELETE", f"tpu/v2alpha1/{name}", force="true")
        until(lambda: not self.queued(), "the request is gone")
        self.is_in_step = False

    def wait(self) -> None:
        self.workspace.advance(
            300
        )  # an agent writes its next report within a minute: one of ten minutes ago proves nothing

    def interrupted_teardown(self) -> None:
        """Google does not delete the account."""
        kept = {"method": "iam.projects.serviceAccounts.delete", "status": 500, "count": 99}
        self.workspace.change_scenario({"faults": [kept]})
        self.workspace.script("teardown", "--stack", self.stack, "--yes", expect=None)
        self.workspace.change_scenario({"faults": []})
        self.is_in_step = False

    def teardown(self) -> None:
        done = self.workspace.script("teardown", "--stack", self.stack, "--yes", expect=None)
        assert not self.queued(), done.text
        if done.code == 0:
            self.machines.clear()
        self.is_in_step = True

    # What the commands say

    def faults(self) -> list[str]:
        """Return what the commands contradict."""

        def run(command: str, *words: str) -> tuple[int, str, str]:
            module = ("connect", "chat") if command == "chat" else (command,)
            done = self.workspace.run(sys.executable, "-m", f"scripts.{module[0]}", *module[1:], *words, expect=None)
            return done.code, done.out, done.err

        asked_s = self.now_s()
        claims = [
            said.of_status(self, run),
            said.of_teardown(self, run),
            said.of_guard(STACK, run),
            said.of_logs(self, run),
            said.of_gemma(self, run("gemma")[1].splitlines()),
        ]
        truth = self.truth(asked_s)
        if truth.word == "no":
            claims.append(said.of_user("chat", self, run, "Say hello."))
        resources = self.workspace.resources(self.stack)
        return [*said.faults_of(claims, truth, is_in_step=self.is_in_step, has_resources=bool(resources))]


def seconds(stamp: str) -> float:
    """Return an RFC 3339 time in seconds since 1970."""
    return datetime.fromisoformat(stamp).timestamp()


def test_commands_agree_with_the_cloud_or_do_not_know(workspace, subtests):
    workspace.pulumi("stack", "init", STACK)
    workspace.configure(STACK, **{"tpu.waitFor": "active"})
    world, story = EngineWorld(workspace), []
    for seed in range(HISTORIES):
        random = Random(seed)  # noqa: S311 - a history, not a secret
        for _ in range(random.randint(1, 2)):
            can = world.events()
            event = random.choice([*can, *(one for one in OFTEN if one in can)])
            story.append(event)
            can[event]()
            world.settle()
        with subtests.test(seed=seed):
            assert world.faults() == [], story
    if world.stack != STACK:
        world.rename(STACK)
    workspace.teardown(STACK)
