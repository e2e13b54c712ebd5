"""Every printed "next" is true: from each situation, the printed command is typed literally until the stack serves or is gone.

A seed draws the commands that are typed first. `make test` types all of them where only local files are damaged
(tests/scripts/stack/test_next_commands.py), and here what is drawn for QUICK, in test_cloud_run_stack.py.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import sys
from collections import Counter, deque
from dataclasses import dataclass
from itertools import count

import pytest
import yaml

from gemma_serving.engine import runner
from gemma_serving.engine.locks import is_lock_error
from tests.engine.conftest import CAPACITY, PROJECT, Answer, Workspace, open_workspace
from tests.engine.terminal import typed
from tests.engine_package.test_locks import dead_pid
from tests.polling import until
from tests.scripts.stack.folder_engine import LOCKS, STACKS, FolderEngine
from tests.scripts.stack.following import SEED, Followed, drawn

RUN, TPU = "l4-12b-qat", "tpu-v6e1"
LEFT_BY_DESIGN = ("/operations/", "/roles/", "/networks/", "/subnetworks/")
"""Records, and what Google holds for hours after a Cloud Run service."""

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(7200)]


@dataclass(kw_only=True)
class World(Followed):
    """A stack with the real engine in a workspace."""

    workspace: Workspace
    settings: str

    @property
    def is_service(self):
        return self.stack != TPU

    @property
    def bucket(self):
        return f"storage/storage/v1/b/{PROJECT}-gemma-{self.stack}-models"

    @property
    def create(self):
        return f"{'run.projects.locations.services' if self.is_service else 'tpu.projects.locations.queuedResources'}.create"

    @property
    def patch(self):
        return f"{'run.projects.locations.services' if self.is_service else 'tpu.projects.locations.nodes'}.patch"

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
            if self.is_service:
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
        kind = "gcp:cloudrunv2/service:Service" if self.is_service else CAPACITY
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
            ("cloudRun", "concurrency", {8, 16}) if self.is_service else ("vllm", "maxModelLen", {8192, 16384})
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
        if self.is_service:
            name = f"projects/{PROJECT}/locations/us-east4/services/gemma-{self.stack}"
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
        for one in self.workspace.call("GET", f"{self.bucket}/o").get("items", []):
            if one["name"].endswith(end):
                self.workspace.call("DELETE", f"{self.bucket}/o/{one['name'].replace('/', '%2F')}")

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
        "bucket deleted": lambda w: (w.delete_objects(), w.workspace.call("DELETE", w.bucket)),
        "server and bucket deleted": lambda w: (
            w.end_server(),
            w.delete_objects(),
            w.workspace.call("DELETE", w.bucket),
        ),
        "manifest removed from the settings": lambda w: w.workspace.configure(w.stack, **{"bucket.manifest": None}),
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


QUICK = ("API off", "server dropped from the state", "manifest removed from the settings")
"""The situations of `make test` with the real engine, without a teardown, so that one deployment serves all."""
CHANGES = ("", "", "up {} --yes")


@contextlib.contextmanager
def opened(folder, stack):
    """A cloud and a project of its own, with a stack that serves after the first `serve`."""
    with open_workspace(folder) as workspace:
        workspace.pulumi("stack", "init", stack)
        if stack == TPU:  # a network in one region is made faster
            workspace.configure(TPU, **{"tpu.zones": ["us-east5-a"]})
        yield World(stack=stack, workspace=workspace, settings=workspace.settings(stack).read_text())


@pytest.mark.parametrize("stack", [RUN, TPU])
def test_each_printed_command_leads_to_a_stack_that_serves_or_is_gone(tmp_path, subtests, stack):
    table = {**OF_BOTH, **OF_ONE[stack]}
    reached, not_followed = 0, Counter()
    left = deque(drawn(stack, table, (*CHANGES, "teardown {} --yes")))
    for number in count():
        if not left:
            break
        with opened(tmp_path / str(number), stack) as world:  # a new world after a situation that did not end well
            ends_well = True
            while left and ends_well:
                row = left.popleft()
                ends_well = False
                with subtests.test(seed=SEED, situation=row.name, first=row.first):
                    world.serve()
                    ends = ("serves", "gone") if row.name in MAY_GO else ("serves",)
                    print(f"{row}: {world.play(row, table[row.name], ends)}", flush=True)
                    ends_well = True
            reached, not_followed = reached + world.reached, not_followed + world.not_followed
    print(f"{reached} lines reached; not followed: {[*not_followed]}")


def lock_in(backend):
    """Write the lock of a process that is gone."""
    path = backend / LOCKS / "x" / "a.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = {"pid": 1, "username": "me", "hostname": "there", "timestamp": "2026-11-20T12:00:00Z"}
    path.write_text(json.dumps(holder))


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: None,
        lambda backend: (backend / STACKS / "x.json").write_text('{"version": 3, "chec'),
        lambda backend: (backend / STACKS / "x.json").write_text(""),
        lambda backend: (backend / STACKS / "x.json.attrs").write_text(""),
        lambda backend: (backend / STACKS / "x.json").unlink(),
        lock_in,
    ],
)
def test_the_engine_without_a_process_answers_as_the_engine(tmp_path, monkeypatch, damage):
    """tests/scripts/stack/test_next_commands.py types commands with it."""
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    (tmp_path / "Pulumi.x.yaml").write_text("config: {}\n")
    (tmp_path / "whole.json").write_text('{"version": 3, "deployment": {}}')
    backend = tmp_path / "backend"
    backend.mkdir()
    for name, value in {"BACKEND_URL": f"file://{backend}", "CONFIG_PASSPHRASE": "x", "SKIP_UPDATE_CHECK": "1"}.items():
        monkeypatch.setenv(f"PULUMI_{name}", value)
    monkeypatch.chdir(tmp_path)
    runner.query(["stack", "init", "x", "--no-select"])
    damage(backend)
    engine = FolderEngine(tmp_path, "x")
    for words in (
        ["stack", "ls", "--json"],
        ["stack", "export", "--stack", "x"],
        ["stack", "select", "x"],
        ["stack", "import", "--stack", "x", "--file", str(tmp_path / "whole.json")],
        ["stack", "rename", "y", "--stack", "x"],
    ):
        shutil.copytree(tmp_path, tmp_path.with_suffix(".before"))
        real = outcome(runner.run(*words), backend)
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(tmp_path.with_suffix(".before"), tmp_path, dirs_exist_ok=True)
        shutil.rmtree(tmp_path.with_suffix(".before"))
        assert outcome(engine.run(*words), backend) == real, words


def outcome(done, backend):
    """Return what commands read of an answer, and the states that are there: the names of `stack ls`, the first error, and whether it is about a lock."""
    names = [one["name"] for one in json.loads(done.stdout)] if done.stdout.startswith("[") else []
    states = {path.name for path in (backend / STACKS).glob("*.json")}
    return names, done.returncode and runner.error_of(done), is_lock_error(done.stderr), states
