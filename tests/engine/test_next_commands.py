"""Every printed "next" is true: from each situation, the printed command is typed literally until the stack serves or is gone.

A seed draws the commands that are typed first. What is printed at the end was not followed: it is a step of a person, or another command was followed.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import sys
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
import yaml

from tests.engine.conftest import CAPACITY, PROJECT, Answer, Workspace, open_workspace
from tests.engine.terminal import typed
from tests.engine_package.test_locks import dead_pid
from tests.polling import until
from tests.scripts.stack.claims import EXPLAINS, READS, next_in

RUN, TPU = "l4-12b-qat", "tpu-v6e1"
SEED = 1
STEPS = 5
REFUSED = 2
READING = (
    "status {}",
    "chat {} Hello.",
    "smoke {}",
    "logs {}",
    "connect {} -- true",
    "plan {}",
    "preview {}",
    "doctor {}",
)
READ = 2
"""So many of them are typed in a situation in which no other command is typed first."""
USES = ("gemma chat", "gemma smoke", "gemma connect")
LEFT_OUT = re.compile(rf"{EXPLAINS.pattern}|^gemma \w+$")
"""Shows more, or is a command without its stack."""
OF_A_PERSON = re.compile(r"\b[A-Z][A-Z_]+\b|\.\.\.|^gcloud (?!services enable)")
"""A placeholder, or a command of gcloud that the local cloud does not have."""
ENDLESS = re.compile(r"--(?:follow|watch)\b")
BUCKET = f"storage/storage/v1/b/{PROJECT}-gemma-{RUN}-models"
LEFT_BY_DESIGN = ("/operations/", "/roles/", "/networks/", "/subnetworks/")
"""Records, and what Google holds for hours after a Cloud Run service."""

pytestmark = [pytest.mark.engine, pytest.mark.timeout(7200)]


@dataclass
class World:
    """One stack, what was typed, and what a person or Google does between the first commands and the next one."""

    workspace: Workspace
    stack: str
    settings: str
    repairs: list = field(default_factory=list)
    told: dict = field(default_factory=dict)
    """What a command printed that failed while the situation was made."""
    typed: list = field(default_factory=list)
    reached: int = 0
    not_followed: Counter = field(default_factory=Counter)

    @property
    def create(self):
        return f"{'run.projects.locations.services' if self.stack == RUN else 'tpu.projects.locations.queuedResources'}.create"

    @property
    def patch(self):
        return f"{'run.projects.locations.services' if self.stack == RUN else 'tpu.projects.locations.nodes'}.patch"

    @property
    def delete(self):
        return self.create.replace("create", "delete")

    # Typing

    def type(self, line):
        """Type a command as it was printed, with --yes where it asks; in a terminal where it says so."""
        words = shlex.split(line, comments=True)
        command = [self.workspace.engine if words[0] == "pulumi" else words[0], *words[1:]]
        if words[0] == "gemma":
            asks = words[1] in {"up", "teardown"} and not {"--dry-run", "--yes"} & {*words}
            command = [sys.executable, "-m", "scripts.gemma", *words[1:], *(["--yes"] if asks else [])]
        answer = self.workspace.run(*command, expect=None)
        if answer.code == 2 and "in a terminal" in answer.err:
            with typed(self.workspace, *command, columns=200, lines=400) as shown:
                shown.until(lambda one: "(yes/no)" in one.text, "the question")
                answer = Answer(shown.type("yes\n"), shown.text, "")
        self.typed.append(f"$ {line}   ({answer.code})\n{answer.text[-1800:]}")
        return Answer(answer.code, "", answer.err) if words[1] == "logs" else answer  # a log names no next command

    def serves(self):
        asked = self.workspace.script("gemma", "chat", self.stack, "Hello.", expect=None)
        return asked.code == 0 and bool(asked.out.strip())

    def left(self):
        """Return what exists of the stack."""
        found = self.workspace.made(f"gemma-{self.stack}")
        return [one for one in found if not any(part in one for part in LEFT_BY_DESIGN)]

    def serve(self):
        """Let the stack serve if the last situation ended without it."""
        if not self.workspace.settings(self.stack).exists():
            self.workspace.settings(self.stack).write_text(self.settings)
        if not self.left():
            self.workspace.script("teardown", "--stack", self.stack, "--yes", expect=None)
            if self.stack == RUN:
                self.workspace.stage(self.stack)
            self.workspace.script("up", "--stack", self.stack, "--yes")

    # Damage

    def forget(self):
        """Delete the state, and what the folder remembers of its runs."""
        self.workspace.lose_state(self.stack)
        self.workspace.memory.remove(f"up-{self.stack}.json")

    def lock(self):
        state = self.workspace.state_file(self.stack)
        path = state.parents[2] / "locks" / "organization" / "gemma-serving" / self.stack / "a.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        holder = {
            "pid": dead_pid(),
            "username": "me",
            "hostname": socket.gethostname(),
            "timestamp": "2026-11-20T12:00:00Z",
        }
        path.write_text(json.dumps(holder))

    def shell(self, **values):
        """Set variables of the person's shell until the repair."""
        environment = self.workspace.environment
        self.repairs.append(lambda before={key: environment[key] for key in values}: environment.update(before))
        environment.update(values)

    def drop_from_state(self):
        kind = "gcp:cloudrunv2/service:Service" if self.stack == RUN else CAPACITY
        (urn,) = (one["urn"] for one in self.workspace.resources(self.stack) if one["type"] == kind)
        self.workspace.pulumi("state", "delete", "--yes", "--stack", self.stack, urn, "--target-dependents", "--force")

    def drop_salt(self):
        path = self.workspace.settings(self.stack)
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if "encryptionsalt" not in line))

    def edit(self, **values):
        """Change settings until the repair."""
        self.repairs.append(self.workspace.edit(self.stack))
        self.workspace.configure(self.stack, **values)

    def change(self):
        """Change a setting, so that the next `up` updates the server."""
        section, key, values = (
            ("cloudRun", "concurrency", {8, 16}) if self.stack == RUN else ("vllm", "maxModelLen", {8192, 16384})
        )
        config = yaml.safe_load(self.workspace.settings(self.stack).read_text())["config"]
        (other,) = values - {config[f"gemma-serving:{section}"][key]}
        self.workspace.configure(self.stack, **{f"{section}.{key}": other})

    def scenario(self, changes, back):
        """Change the cloud until the repair."""
        self.workspace.change_scenario(changes)
        self.repairs.append(lambda: self.workspace.change_scenario(back))

    def fault(self, method, **values):
        self.scenario({"faults": [{"method": method, "count": 99, "status": 500, **values}]}, {"faults": []})

    def fails(self, command="up"):
        """Run a command that may fail. What it prints then is followed too."""
        answer = self.workspace.script("gemma", command, self.stack, "--yes", expect=None)
        if answer.code:
            self.told[f"(a failed {command})"] = answer

    def kill(self, method, command="up"):
        """Start a command, and kill it and all that it started once a method has done its work without an answer."""
        hang = {"method": method, "count": 99, "action": "hang", "when": "after", "hang_s": 1}
        self.workspace.call("DELETE", "admin/requests")
        self.workspace.change_scenario({"faults": [hang]})
        with (self.workspace.folder / "killed.log").open("w+") as log:
            running = self.workspace.begin(
                sys.executable, "-m", "scripts.gemma", command, self.stack, "--yes", output=log
            )
            until(
                lambda: self.workspace.admin(f"requests?id={method}")["requests"] or running.poll() is not None, method
            )
            is_ended = running.poll() is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            self.workspace.change_scenario({"faults": []})
            log.seek(0)
            assert not is_ended, f"{command} ended before {method}: {log.read()}"

    def end_server(self):
        """Delete the server by hand."""
        queued = f"tpu/v2alpha1/projects/{PROJECT}/locations"
        if self.stack == RUN:
            name = f"projects/{PROJECT}/locations/us-east4/services/gemma-{RUN}"
            self.workspace.call("DELETE", f"run/v2/{name}")
            until(lambda: name not in self.workspace.made(name), "the service is gone")
            return
        found = self.workspace.call("GET", f"{queued}/-/queuedResources")["queuedResources"]
        for one in found:
            self.workspace.call("DELETE", f"tpu/v2alpha1/{one['name']}", force="true")
        until(
            lambda: not self.workspace.call("GET", f"{queued}/-/queuedResources").get("queuedResources"), "it is gone"
        )

    def destroy(self):
        answer = self.workspace.pulumi("destroy", "--yes", "--skip-preview", "--stack", self.stack, expect=None)
        if answer.code:
            self.told["(a refused destroy)"] = answer

    def rename(self, *, keep_file):
        text = self.workspace.settings(self.stack).read_text()
        self.workspace.pulumi("stack", "rename", f"renamed-{len(self.workspace.transcript)}", "--stack", self.stack)
        if keep_file:
            self.workspace.settings(self.stack).write_text(text)

    def tear_down(self):
        self.workspace.script("teardown", "--stack", self.stack, "--yes")

    def disable_api(self):
        api = self.create.partition(".")[0]
        self.workspace.post(f"serviceusage/v1/projects/{PROJECT}/services/{api}.googleapis.com:disable", {})

    def delete_objects(self, end=""):
        for one in self.workspace.call("GET", f"{BUCKET}/o").get("items", []):
            if one["name"].endswith(end):
                self.workspace.call("DELETE", f"{BUCKET}/o/{one['name'].replace('/', '%2F')}")

    def preempt(self):
        for one in self.workspace.get("tpu", f"v2alpha1/projects/{PROJECT}/locations/-/nodes")["nodes"]:
            self.workspace.post("admin/preempt", {"node": one["name"]})

    def no_stock(self):
        self.edit(**{"tpu.waitPerZone": "3s"})
        self.workspace.stock(0)
        self.repairs.append(lambda: self.workspace.stock(None))


ACCOUNT = "iam.projects.serviceAccounts"
OF_BOTH = {
    "state lost": lambda w: w.workspace.lose_state(w.stack),
    "state cut off": lambda w: w.workspace.lose_state(w.stack, keep=0.5),
    "state without a byte": lambda w: w.workspace.lose_state(w.stack, keep=0),
    "state lost in another folder": lambda w: w.forget(),
    "side file empty": lambda w: w.workspace.state_file(w.stack).with_suffix(".json.attrs").write_text(""),
    "lock of a dead process": lambda w: w.lock(),
    "another backend": lambda w: w.shell(PULUMI_BACKEND_URL=f"file://{w.workspace.folder}"),
    "another passphrase": lambda w: w.shell(PULUMI_CONFIG_PASSPHRASE="another"),
    "renamed": lambda w: w.rename(keep_file=False),
    "renamed, and the settings file restored": lambda w: w.rename(keep_file=True),
    "settings file lost": lambda w: w.workspace.settings(w.stack).unlink(),
    "salt lost": lambda w: w.drop_salt(),
    "unknown setting": lambda w: w.edit(**{"vllm.maxModelLenn": 5}),
    "server dropped from the state": lambda w: w.drop_from_state(),
    "server deleted": lambda w: w.end_server(),
    "account deleted": lambda w: w.workspace.call(
        "DELETE", f"iam/v1/projects/{PROJECT}/serviceAccounts/gemma-{w.stack}@{PROJECT}.iam.gserviceaccount.com"
    ),
    "API off": lambda w: w.disable_api(),
    "Google answers 500": lambda w: w.fault("*.get", count=30),
    "Google answers 429": lambda w: w.fault("*.list", count=30, status=429),
    "change failed": lambda w: (w.change(), w.fault(w.patch), w.fails()),
    "change without an answer": lambda w: (w.change(), w.fault(w.patch, when="after", count=6), w.fails()),
    "change killed": lambda w: (w.change(), w.kill(w.patch)),
    "creation failed": lambda w: (w.end_server(), w.fault(w.create), w.fails()),
    "creation without an answer": lambda w: (w.end_server(), w.fault(w.create, when="after"), w.fails()),
    "creation killed": lambda w: (w.end_server(), w.kill(w.create)),
    "never deployed, or torn down": lambda w: w.tear_down(),
    "age used up": lambda w: w.workspace.advance(8 * 24 * 3600),
    "teardown failed": lambda w: (w.fault(f"{ACCOUNT}.delete"), w.fails("teardown")),
    "teardown killed": lambda w: w.kill(w.delete, "teardown"),
    "destroyed by the engine": lambda w: w.destroy(),
}
MAY_GO = ("age used up", "teardown failed", "teardown killed", "destroyed by the engine")
"""Situations that may end with a teardown that nobody typed first."""
ONE_DRIVER, OTHER_DRIVER = ({"run": {"gpu_drivers": {"nvidia-l4": branch}}} for branch in (535, 580))
OF_ONE = {
    RUN: {
        "weights deleted": lambda w: w.delete_objects("model.safetensors"),
        "bucket deleted": lambda w: (w.delete_objects(), w.workspace.call("DELETE", BUCKET)),
        "server and bucket deleted": lambda w: (w.end_server(), w.delete_objects(), w.workspace.call("DELETE", BUCKET)),
        "manifest removed from the settings": lambda w: w.workspace.configure(RUN, **{"bucket.manifest": None}),
        "revision that cannot start": lambda w: (w.change(), w.scenario(OTHER_DRIVER, ONE_DRIVER), w.fails()),
        "length that does not fit": lambda w: (
            w.edit(**{"vllm.maxModelLen": 262144, "vllm.gpuMemoryUtilization": 0.5, "acceptFindings": ["FIT04"]}),
            w.fails(),
        ),
        "no quota": lambda w: (
            w.end_server(),
            w.scenario({"run": {"gpu_quota": 0}}, {"run": {"gpu_quota": 3}}),
            w.fails(),
        ),
    },
    TPU: {
        "run ended": lambda w: w.workspace.advance(4 * 3600 + 60),
        "preempted": lambda w: w.preempt(),
        "no stock": lambda w: (w.end_server(), w.no_stock(), w.fails()),
        "no quota": lambda w: (
            w.end_server(),
            w.scenario({"tpu": {"preemptible_quota_chips": 0}}, {"tpu": {"preemptible_quota_chips": 64}}),
            w.fails(),
        ),
        "chips that may not be opened": lambda w: (
            w.end_server(),
            w.scenario({"tpu": {"devices": "denied"}}, {"tpu": {"devices": "open"}}),
            w.fails(),
        ),
        "first up killed at its network": lambda w: (w.tear_down(), w.kill("compute.networks.insert")),
        "first up killed at its account": lambda w: (w.tear_down(), w.kill(f"{ACCOUNT}.create")),
        "first up without an answer": lambda w: (w.tear_down(), w.fault(f"{ACCOUNT}.create", when="after"), w.fails()),
    },
}


QUICK = {
    (RUN, name)
    for name in (
        "state cut off",
        "state without a byte",
        "side file empty",
        "lock of a dead process",
        "another backend",
        "API off",
        "renamed",
        "settings file lost",
        "salt lost",
        "unknown setting",
        "server dropped from the state",
        "manifest removed from the settings",
    )
}
"""The situations of `make test`, without a teardown, so that one deployment serves all. The rest is long."""


def drawn(stack):
    """Yield each situation of a stack, the commands that are typed first in it, and whether that changes the stack."""
    table = [*OF_BOTH, *OF_ONE[stack]]
    for name in Random(f"{SEED} {stack}").sample(table, len(table)):  # noqa: S311 - an order, not a secret
        random = Random(f"{SEED} {stack} {name}")  # noqa: S311 - a new row changes no other
        changes = ["", "", "up {} --yes", *([] if (stack, name) in QUICK else ["teardown {} --yes"])]
        change = random.choice(changes)
        yield (
            name,
            [f"gemma {one}".format(stack) for one in ([change] if change else random.sample(READING, READ))],
            change,
        )


def play(world, name, first, *, changes):
    """Make a situation, type the first commands, and follow what they print. Return the end."""
    world.typed, world.told = [], {}
    world.serve()
    ends = ("serves", "gone") if name in MAY_GO else ("serves",)
    try:
        {**OF_BOTH, **OF_ONE[world.stack]}[name](world)
        answers = {line: world.type(line) for line in first}
    finally:
        while world.repairs:
            world.repairs.pop()()
    if changes:
        ((line, answer),) = answers.items()
        return follow(world, line, answer, ("gone",) if changes.startswith("teardown") else ends)
    asked = {line: to_a_change(world, line, answer) for line, answer in {**answers, **world.told}.items()}
    chosen = next(filter(None, asked.values()), f"gemma up {world.stack}")
    world.reached += sum(one in {None, chosen} for one in asked.values())
    world.not_followed.update(f"{name}: {line}: {one}" for line, one in asked.items() if one not in {None, chosen})
    return follow(world, chosen, world.type(chosen), ends)


def to_a_change(world, line, said):
    """Type what is printed until it would change the stack, and return that command; None if the stack serves or a person is needed."""
    for _ in range(STEPS):
        if said.code == 0 and line.startswith(USES):
            return None
        command = next_command(world, line, said)
        if not READS.match(command):
            return command
        if command == line:
            return None
        line, said = command, world.type(command)
    return require(world, False, f"not at a change after {STEPS} commands")


def follow(world, line, said, ends):
    """Type what is printed until the stack serves or is gone. Return the end."""
    before = set()
    for _ in range(STEPS + 1):
        if said.code == 0 and line.startswith("gemma teardown"):
            require(world, "gone" in ends and not world.left(), f"it is torn down, with {world.left()} left")
            return "gone"
        if said.code == 0 and line.startswith(("gemma up", *USES)) and world.serves():
            require(world, "serves" in ends, "it serves")
            return "serves"
        command = next_command(world, line, said)
        line, said = command, world.type(command)
        circle = (command, re.sub(r"[\d.:]+", "", said.text))
        require(world, circle not in before, f"`{command}` leads to itself")
        before.add(circle)
    return require(world, False, f"not at the end after {STEPS} commands")


def next_command(world, line, said):
    """Return the printed command. A person who is told nothing asks for the status, or tries again if told so."""
    command = next_in(said.text, LEFT_OUT)
    if not command and said.code and re.search("[Tt]ry again|retry", said.text):
        return line
    names_fix = said.code == REFUSED or "Did you mean" in said.text
    if not command and names_fix:  # in the settings, which a person has made
        return line
    if not command and said.code == 0 and not line.startswith("gemma status"):
        return f"gemma status {world.stack}"
    require(world, command, "no next command is printed, and the stack does not serve")
    if OF_A_PERSON.search(command):
        world.not_followed[command] += 1
        return line  # the person has done it, and tries again
    if ENDLESS.search(command):  # a person watches until it changes
        return f"gemma status {world.stack}"
    return f"{command} -- true" if command == f"gemma connect {world.stack}" else command  # it runs until Ctrl-C


def require(world, holds, why):
    """Fail with all that was typed and printed."""
    assert holds, "\n".join([why, *world.typed])


@contextlib.contextmanager
def opened(folder, stack):
    """A cloud and a project of its own, with a stack that serves after the first `serve`."""
    with open_workspace(folder) as workspace:
        workspace.pulumi("stack", "init", stack)
        if stack == TPU:  # a network in one region is made faster
            workspace.configure(TPU, **{"tpu.zones": ["us-east5-a"]})
        yield World(workspace, stack, workspace.settings(stack).read_text())


def play_all(folder, subtests, stack, table):
    """Play situations one after another, in a new world after one that did not end well. Print what was not followed."""
    reached, not_followed = 0, Counter()
    left = deque(table)
    for number in count():
        if not left:
            break
        with opened(folder / str(number), stack) as world:
            ends_well = True
            while left and ends_well:
                name, first, change = left.popleft()
                ends_well = False
                with subtests.test(seed=SEED, situation=name, first=first):
                    print(f"{name}, {first}: {play(world, name, first, changes=change)}", flush=True)
                    ends_well = True
            reached, not_followed = reached + world.reached, not_followed + world.not_followed
    print(f"{reached} lines reached; not followed: {[*not_followed]}")


@pytest.mark.long
@pytest.mark.parametrize("stack", [RUN, TPU])
def test_each_printed_command_leads_to_a_stack_that_serves_or_is_gone(tmp_path, subtests, stack):
    play_all(tmp_path, subtests, stack, [row for row in drawn(stack) if (stack, row[0]) not in QUICK])


def test_the_printed_commands_of_one_deployment_lead_to_a_stack_that_serves_or_is_gone(tmp_path, subtests):
    play_all(tmp_path, subtests, RUN, [row for row in drawn(RUN) if (RUN, row[0]) in QUICK])
