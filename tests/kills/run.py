"""One cycle: its kills, edits and damage, then `gemma up` and teardown, or teardown alone; and what must hold afterwards."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.engine.conftest import ROOT
from tests.engine.terminal import come_back
from tests.kills import processes
from tests.kills.plan import GPU, TPU, Cycle, Damage, Edit, Kill, Whole
from tests.kills.world import Documents, World
from tests.safetensors_files import safetensors

COMMAND_S: Final = 300.0
"""No command takes longer, killed or not."""
ORPHAN_S: Final = 60.0
"""So long after the end of a command, its processes are gone."""
AFTERWARDS_S: Final = 10.0
"""So long after a teardown may the cloud still end what it was told to end."""
_POLL_S: Final = 0.05
_LAST_LINES: Final = 40
_ZONES: Final = ["us-east5-a", "europe-west4-a"]
_RUN_S: Final = 4 * 3600 + 600
"""Longer than `tpu.maxRunDuration`."""
_HOLD_S: Final = 3 * 3600
"""Longer than Google holds a network, and the hour that it may be late."""
_HOME, _AWAY = "us-east4", "europe-west4"
_ALICE: Final = "user:alice@example.com"
_NAME: Final = "gemma-serving:"


class BrokenPromiseError(AssertionError):
    """Something that must always hold does not."""


@dataclass(kw_only=True)
class Done:
    """A kill as it came about. `missed` says that the command had ended before, or had no such process."""

    kill: Kill
    missed: bool
    seconds: float

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.kill}: {'missed' if self.missed else 'hit'} after {self.seconds:.1f} s"


@dataclass(kw_only=True)
class Outcome:
    """What a cycle did and found."""

    cycle: Cycle
    history: list[str] = field(default_factory=list)
    kills: list[Done] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    came_back: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the cycle as the history keeps it."""
        return {
            "cycle": self.cycle.number,
            "stack": self.cycle.stack,
            "steps": self.history,
            "kills": [
                {"kill": str(done.kill), "hit": not done.missed, "seconds": round(done.seconds, 2)}
                for done in self.kills
            ],
            "came_back": self.came_back,
            "problems": self.problems,
            "seconds": round(self.seconds, 1),
        }


class Runner:
    """Drives one cycle on a world."""

    def __init__(self, world: World, cycle: Cycle) -> None:
        self.world, self.stack, self.cycle = world, cycle.stack, cycle
        self.settings = world.workspace.settings(self.stack)
        self.outcome = Outcome(cycle=cycle)
        self.before = world.settled()
        self.strangers = set(world.queued(f"gemma-{self.stack}"))
        self.count = 0

    def run(self) -> Outcome:
        """Do all of it. What does not hold stands in the outcome's problems."""
        started_s = time.monotonic()
        try:
            self._prepare()
            for step in self.cycle.steps:
                self._step(step)
            self._stock(1000)
            self._end()
        except BrokenPromiseError as error:
            self.outcome.problems.append(str(error))
        self.outcome.seconds = time.monotonic() - started_s
        return self.outcome

    # Steps

    def _prepare(self) -> None:
        salt = yaml.safe_load(self.settings.read_text()).get("encryptionsalt")
        document = yaml.safe_load((ROOT / self.settings.name).read_text())
        self.settings.write_text(yaml.safe_dump({**document, **({"encryptionsalt": salt} if salt else {})}))
        if self.stack == TPU:
            # Each run that expires adds to the age.
            self._set(**{"tpu.zones": list(_ZONES), "tpu.waitPerZone": "3s", "maxAge": None})
        self._whole("stack init", [str(self.world.workspace.engine), "stack", "init", self.stack], may_fail=True)
        if self.stack == GPU:
            self._whole("stage", self._words("stage"))

    def _step(self, step: object) -> None:
        if isinstance(step, Kill):
            self._kill(step)
            return
        if isinstance(step, Whole):
            self._whole(step.command, self._words(step.command), may_fail=step.may_fail)
            return
        self.outcome.history.append(str(step))
        if isinstance(step, Edit):
            self._edit(step.what)
        elif isinstance(step, Damage):
            self._damage(step.what)

    def _words(self, command: str) -> list[str]:
        world, stack = self.world, self.stack
        checkpoint = world.folder / "checkpoint"
        if command == "stage":
            checkpoint.mkdir(exist_ok=True)
            (checkpoint / "config.json").write_text("{}")
            (checkpoint / "model.safetensors").write_bytes(safetensors(b"\0" * 64))
        return {
            "up": lambda: world.pulumi(stack, "up", "--yes", "--skip-preview"),
            "update": lambda: world.pulumi(stack, "up", "--yes", "--skip-preview"),
            "come back": lambda: world.script(stack, "up", "--yes"),
            "destroy": lambda: world.pulumi(stack, "destroy", "--yes", "--skip-preview"),
            "cancel": lambda: world.pulumi(stack, "cancel", "--yes"),
            "preview": lambda: world.pulumi(stack, "preview", "--refresh", "--expect-no-changes"),
            "teardown": lambda: world.script(stack, "teardown", "--yes", "--json"),
            "stage": lambda: world.script(stack, "stage_model", "--from", str(checkpoint)),
        }[command]()

    def _kill(self, kill: Kill) -> None:
        if kill.command == "update":
            self._edit("length")
        if kill.command not in {"come back", "teardown"} and self.world.locked(self.stack):
            self._whole("cancel", self._words("cancel"), may_fail=True)
        self.world.forget_calls()
        self.count += 1
        mark, log = f"{self.cycle.number}-{self.count}-{id(self)}", self._log(kill.command)
        process = self.world.begin(self._words(kill.command), mark, log)
        started_s = time.monotonic()
        alive = self._await(kill, process.poll, started_s)
        hit = alive and self._hit(kill, mark, process)
        done = Done(kill=kill, missed=not hit, seconds=time.monotonic() - started_s)
        self.outcome.kills.append(done)
        self.outcome.history.append(str(done))
        self._finish(kill.command, process, mark, log)

    def _hit(self, kill: Kill, mark: str, process: "subprocess.Popen[bytes]") -> bool:
        """Send the signal as soon as there is such a process. Return False if the command ends before."""
        if kill.target == "local cloud":
            self.world.kill(kill.signal)
            return True
        end = time.monotonic() + COMMAND_S
        while process.poll() is None and time.monotonic() < end:
            if processes.hit(mark, process.pid, kill.target, kill.signal):
                return True
            time.sleep(_POLL_S)  # between two looks at processes that run on
        return False

    def _await(self, kill: Kill, poll: Callable[[], int | None], started_s: float) -> bool:
        """Wait for the moment of a kill. Return whether the command still runs."""
        moment = kill.moment
        reached_s = started_s if moment.call is None else None
        while poll() is None and time.monotonic() - started_s < COMMAND_S:
            self._no_duplicates()
            if reached_s is None and self.world.calls() >= (moment.call or 0):
                reached_s = time.monotonic()
            if reached_s is not None and time.monotonic() - reached_s >= moment.seconds:
                return True
            time.sleep(_POLL_S)  # between two looks at processes that run on
        return False

    def _finish(self, command: str, process: "subprocess.Popen[bytes]", mark: str, log: Path) -> None:
        """Wait until a command has ended, and its processes with it."""
        end = time.monotonic() + COMMAND_S
        while process.poll() is None:
            self._no_duplicates()
            if time.monotonic() > end:
                for each in processes.marked(mark):
                    processes.send(each.pid, "SIGKILL")
                raise self._broken(f"{command} did not end within {COMMAND_S:.0f} s", log)
            time.sleep(_POLL_S)  # between two looks at processes that run on
        if self.world.process.poll() is not None:
            raise self._broken(f"the local cloud ended by itself with exit code {self.world.process.returncode}", log)
        orphans = processes.wait_for_the_end(mark, ORPHAN_S)
        if orphans:
            for each in orphans:
                processes.send(each.pid, "SIGKILL")
            said = "; ".join(f"{each.pid} {' '.join(each.words)[:160]}" for each in orphans)
            raise self._broken(f"{len(orphans)} processes of {command} live on: {said}", log)
        self._no_duplicates()

    def _no_duplicates(self) -> None:
        found = [name for name in self.world.queued(f"gemma-{self.stack}") if name not in self.strangers]
        if len(found) > 1:
            raise self._broken(f"two queued resources at the same time: {found}", None)

    # Edits and damage

    def _set(self, **changes: object) -> None:
        self.world.workspace.configure(self.stack, **changes)

    def _edit(self, what: str) -> None:
        config = yaml.safe_load(self.settings.read_text())["config"]
        if what == "length":
            now = config[f"{_NAME}vllm"]["maxModelLen"]
            self._set(**{"vllm.maxModelLen": 4096 if now != 4096 else 2048})
        elif what == "concurrency":
            now = config[f"{_NAME}cloudRun"]["concurrency"]
            self._set(**{"cloudRun.concurrency": 4 if now != 4 else 8})
        elif what in {"region", "home region"}:
            self._set(**{"cloudRun.region": _AWAY if what == "region" else _HOME})
        elif what == "member":
            now = config[f"{_NAME}tpu"].get("tunnelMembers")
            self._set(**{"tpu.tunnelMembers": [] if now else [_ALICE]})
        elif what == "no stock in the first zone":
            self._stock(0)
        elif what == "run expired":
            self.world.workspace.advance(_RUN_S)
        elif what == "preempted":
            self._preempt()
        else:
            zones = {"zones reversed": _ZONES[::-1], "first zone dropped": _ZONES[1:]}.get(what, _ZONES)
            self._set(**{"tpu.zones": list(zones)})

    def _preempt(self) -> None:
        for (kind, name), document in self.world.snapshot().items():
            if kind == "tpu.nodes" and name.endswith(f"/gemma-{self.stack}-node") and document["state"] == "READY":
                self.world.workspace.post("admin/preempt", {"node": name})

    def _stock(self, count: int) -> None:
        zone = {"accelerator_types": ["v6e-1", "v6e-4", "v6e-8"], "flex_start": True, "capacity": {"v6e-1": count}}
        self.world.workspace.change_scenario({"tpu": {"zones": {_ZONES[0]: zone}}})

    def _damage(self, what: str) -> None:
        state = self.world.workspace.state_file(self.stack)
        if not state.is_file():
            return
        if what == "cut in half":
            text = state.read_text()
            state.write_text(text[: len(text) // 2])
            return
        state.unlink()
        if what == "deleted with its copy":
            state.with_suffix(".json.bak").unlink(missing_ok=True)

    # The end

    def _end(self) -> None:
        if self.cycle.comes_back:
            if self.stack == TPU:
                self._set(**{"tpu.zones": list(_ZONES)})
            if self.stack == GPU:
                self._go_where_the_bucket_is()
            if self.stack == GPU:
                self._come_back(may_fail=True)  # imports the bucket
                self._whole("stage", self._words("stage"))
            self._come_back()
            self._whole("preview", self._words("preview"))
            self.outcome.came_back = True
        self._whole("teardown", self._words("teardown"))
        if self.stack == GPU:  # Google holds the network of a service that ran
            self.world.request("POST", "admin/advance", {"seconds": _HOLD_S})
            self._whole("teardown", self._words("teardown"))
        self._nothing_left_and_nothing_touched()

    def _come_back(self, *, may_fail: bool = False) -> None:
        """Run `up`, as a person who answers yes in a terminal where it asks for what a plain `pulumi up` began."""
        self.outcome.history.append("come back")
        try:
            come_back(self.world.workspace, self.stack)
        except AssertionError as error:
            if not may_fail:
                raise self._broken(f"come back: {error}", None) from None

    def _go_where_the_bucket_is(self) -> None:
        """Set the region of the bucket, as docs/recovery.md says: the engine refuses to replace one with weights."""
        for (kind, name), document in self.world.snapshot().items():
            if kind.endswith("buckets") and name.endswith(f"local-project-gemma-{self.stack}-models"):
                self._set(**{"cloudRun.region": str(document["location"]).lower()})

    def _whole(self, name: str, words: list[str], *, may_fail: bool = False) -> None:
        """Run a command to its end."""
        self.count += 1
        mark, log = f"{self.cycle.number}-{self.count}-{id(self)}", self._log(name)
        process = self.world.begin(words, mark, log)
        self._finish(name, process, mark, log)
        self.outcome.history.append(f"{name}: exit code {process.returncode}")
        if process.returncode != 0 and not may_fail:
            raise self._broken(f"{name} ended with exit code {process.returncode}", log)

    def _nothing_left_and_nothing_touched(self) -> None:
        """Compare what stands there with what stood there before. What the cloud still ends has a moment to end."""
        end = time.monotonic() + AFTERWARDS_S
        while (found := self._differences(self.world.settled())) and time.monotonic() < end:
            time.sleep(_POLL_S)  # between two looks at processes that run on
        if found:
            raise self._broken(found, None)

    def _differences(self, now: Documents) -> str:
        """Return a sentence for what is left, gone or changed; empty if nothing is."""
        left = sorted(f"{kind} {name}" for kind, name in now.keys() - self.before.keys())
        gone = sorted(f"{kind} {name}" for kind, name in self.before.keys() - now.keys())
        changed = [
            f"{kind} {name}: {_plain(self.before[kind, name])} -> {_plain(now[kind, name])}"
            for kind, name in sorted(now.keys() & self.before.keys())
            if _plain(now[kind, name]) != _plain(self.before[kind, name])
        ]
        words = {"left after teardown": left, "of others, and gone": gone, "of others, and changed": changed}
        return "; ".join(f"{what}: {found}" for what, found in words.items() if found)

    def _log(self, name: str) -> Path:
        folder = self.world.folder / "logs"
        folder.mkdir(exist_ok=True)
        return folder / f"{self.cycle.number:04d}-{self.count:02d}-{name.replace(' ', '-')}.log"

    def _broken(self, what: str, log: Path | None) -> BrokenPromiseError:
        said = "" if log is None else "\n" + "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        return BrokenPromiseError(what + said)


def _plain(document: Any) -> str:
    """Return a document as text, with the members of a policy in one order."""
    policy = document.get("policy") if isinstance(document, dict) else None
    if policy:
        bindings = sorted(
            json.dumps({**binding, "members": sorted(binding["members"])}, sort_keys=True)
            for binding in policy.get("bindings", [])
        )
        return "\n".join(bindings)
    return json.dumps(document, sort_keys=True)
