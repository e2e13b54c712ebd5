"""The real CLI on a local cloud: a copy of the project, a cloud of its own, and the environment that goes with it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
import requests
import yaml

from dev.authors.in_local_cloud import copy_room
from dev.tools.engine.language_host import WARM_PROGRAMS
from gemma_serving.contracts.fields import to_json
from gemma_serving.contracts.memory import memory_of
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.engine.exported_state import parse_deployment
from gemma_serving.engine.state import outputs_in
from localcloud.environment import in_shell
from localcloud.world.state import StateError, description
from tests.engine.warm import project_programs, run_python
from tests.golden import golden, if_meant
from tests.polling import until

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "components",
    "dev",
    "examples",
    "gemma_serving",
    "images",
    "packages",
    "scripts",
    "stacks",
)
LIMIT_S = 480

FAILURE = object()
"""Expected of a command that ends with another exit code than 0, and says why without a traceback."""
PROJECT = "local-project"
CAPACITY = "gcp-tpu:index:QueuedResource"
ALICE = "user:alice@example.com"

ASK = """
import json, sys
from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from loadtest.client.openai import call_once
from gemma_serving.scripts.stack.access import open_stack_access
with open_stack_access(from_json(StackOutputs, json.loads(sys.argv[1]))) as access:
    models = call_once(access.base_url, access.headers, "GET", "/v1/models", limit_s=30).body
print(models["data"][0]["max_model_len"])
"""


@dataclass
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def text(self):
        return self.out + self.err

    @property
    def json(self):
        return json.loads(self.out)


@dataclass
class Workspace:
    """A copy of the project beside a running local cloud."""

    folder: Path
    environment: dict
    transcript: list = field(default_factory=list)
    headers: dict = field(default_factory=dict)
    """More headers of a test's own calls of Google's APIs."""
    commands: Path | None = None
    """Socket of the process that forks the project's commands."""

    def run(self, *command, stdin="", expect=0, environment=None, limit_s=LIMIT_S):
        words, folder = [str(part) for part in command], self.folder / "project"
        variables = {**self.environment, **(environment or {})}
        if variables.get(WARM_PROGRAMS) and words[0] == sys.executable:
            done = run_python(words[1:], variables, folder, self.commands, stdin=stdin, limit_s=limit_s)
        else:
            done = subprocess.run(
                words,
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                input=stdin,
                timeout=limit_s,
                check=False,
            )
        answer = Answer(done.returncode, done.stdout, done.stderr)
        self.transcript.append(answer.text)
        if expect is FAILURE:
            assert answer.code != 0, answer.text[-4000:]
            assert "Traceback" not in answer.text.replace("[stderr] Traceback", ""), (
                answer.text
            )  # a server's log may have one
        elif expect is not None:
            assert answer.code == expect, f"{command}: exit code {answer.code}\n{answer.text[-4000:]}"
        return answer

    def begin(self, *command, output=subprocess.DEVNULL):
        """Start a command in a process group of its own."""
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=self.folder / "project",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def begin_up(self, stack, **options):
        """Start an `up` that a test ends in its middle."""
        words = ("up", "--yes", "--skip-preview", "--non-interactive", "--stack", stack)
        return self.begin(self.engine, *words, **options)

    def pulumi(self, *arguments, **options):
        return self.run(self.engine, *arguments, "--non-interactive", **options)

    def up(self, stack, *arguments, **options):
        return self.pulumi("up", "--yes", "--skip-preview", "--stack", stack, *arguments, **options)

    def assert_no_changes(self, stack, *arguments):
        self.pulumi("preview", "--expect-no-changes", "--stack", stack, *arguments)

    def cold(self, *arguments):
        """Run the engine as a user does: it starts an interpreter for the program."""
        return self.pulumi(*arguments, environment={WARM_PROGRAMS: ""})

    def script(self, name, *arguments, **options):
        return self.run(sys.executable, "-m", f"scripts.{name}", *arguments, **options)

    @property
    def engine(self):
        return Path(sys.executable).with_name("pulumi")

    @property
    def identity(self):
        """The operator's token, whatever the commands of a test log in with."""
        return {"Authorization": f"Bearer {self.environment['LOCALCLOUD_TOKEN']}"}

    def call(self, verb, path, body=None, **parameters):
        """Call the local cloud as its operator."""
        url = f"{self.environment['LOCALCLOUD_URL']}/{path}"
        headers = {**self.identity, **({} if path.startswith("admin/") else self.headers)}
        answer = requests.request(verb, url, json=body, params=parameters, headers=headers, timeout=60)
        assert answer.ok, answer.text
        return answer.json() if answer.content else {}

    def admin(self, path):
        return self.call("GET", f"admin/{path}")

    def get(self, api, path):
        return self.call("GET", f"{api}/{path}")

    def post(self, path, body):
        return self.call("POST", path, body)

    def enable(self, *apis):
        """Enable APIs as `gcloud services enable` does."""
        for api in apis:
            self.post(f"serviceusage/v1/projects/{PROJECT}/services/{api}:enable", {})

    def advance(self, seconds):
        self.post("admin/advance", {"seconds": seconds})

    def change_scenario(self, changes):
        self.call("PUT", "admin/scenario", changes, merge="true")

    def put_scenario(self, scenario):
        self.call("PUT", "admin/scenario", scenario)

    def stock(self, chips, *zones, accelerator="v6e-1"):
        """Set how many chips each zone has; None is any number."""
        zone = {"accelerator_types": [accelerator], "flex_start": True, "capacity": {accelerator: chips}}
        self.change_scenario({"tpu": {"zones": dict.fromkeys(zones or self.admin("scenario")["tpu"]["zones"], zone)}})

    def policy(self):
        """Return the project's policy."""
        options = {"options": {"requestedPolicyVersion": 3}}
        return self.post(f"cloudresourcemanager/v1/projects/{PROJECT}:getIamPolicy", options)

    def made(self, part):
        """Return the names of the cloud's resources that contain a text."""
        return [row["name"] for row in self.admin("resources")["resources"] if part in row["name"]]

    def state_file(self, stack):
        return self.folder / "cloud" / "pulumi" / ".pulumi" / "stacks" / "gemma-serving" / f"{stack}.json"

    def state(self, stack):
        """The state file itself, as the engine wrote it."""
        return self.state_file(stack).read_text()

    def lose_state(self, stack, keep=None):
        """Delete the state and the engine's copies of it, but keep a share of its text; None keeps no file."""
        path = self.state_file(stack)
        text = path.read_text()
        for each in path.parent.glob(f"{stack}.json*"):
            each.unlink()
        if keep is not None:
            path.write_text(text[: int(len(text) * keep)])

    @property
    def memory(self):
        """What the commands remember of this project and its backend."""
        with mock.patch.dict(os.environ, XDG_STATE_HOME=self.environment["XDG_STATE_HOME"]):
            return memory_of(self.folder / "project", self.environment["PULUMI_BACKEND_URL"])

    def resources(self, stack, kind=""):
        """Return the resources in the state whose type has a text in it."""
        stored = json.loads(self.state(stack))["checkpoint"]["latest"].get("resources", [])
        return [resource for resource in stored if kind in resource["type"]]

    def outputs(self, stack):
        """The stack's outputs as the commands read them, by their JSON keys."""
        return to_json(outputs_in(stack, parse_deployment(stack, self.state(stack)).resources))

    def served_length(self, stack):
        """Ask the running server for its max-model-len, through the way in that the stack's outputs name."""
        return int(self.run(sys.executable, "-c", ASK, json.dumps(self.outputs(stack))).out)

    def settings(self, stack):
        return self.folder / "project" / f"Pulumi.{stack}.yaml"

    def configure(self, stack, **values):
        """Set settings, by their paths; None removes one."""
        path = self.settings(stack)
        document = yaml.safe_load(path.read_text())
        for key, value in values.items():
            *steps, last = f"gemma-serving:{key}".split(".")
            at = document["config"]
            for step in steps:
                at = at.setdefault(step, {})
            at.pop(last, None)
            if value is not None:
                at[last] = value
        path.write_text(yaml.safe_dump(document))

    def edit(self, stack, *replaced):
        """Replace parts of the settings, and return a function that takes the change back."""
        path = self.settings(stack)
        original = text = path.read_text()
        for before, after in replaced:
            assert before in text, before
            text = text.replace(before, after)
        path.write_text(text)
        return lambda: path.write_text(original)

    def wait_for_capacity(self, stack, limit="24h"):
        """Let a stack wait in its first zone until the test is over: 30 simulated minutes are 18 s, less than a command on a busy machine."""
        self.configure(stack, **{"tpu.waitPerZone": limit})

    def stage(self, stack):
        """Stage the stack's checkpoint from the local cloud's hub, as a user does."""
        return self.script("stage_model", "--stack", stack)

    def teardown(self, stack, *words):
        """Tear a stack down, and return the receipt of a clean end."""
        receipt = self.script("teardown", "--stack", stack, "--yes", "--json", *words).json
        assert (receipt["clean"], receipt["state"]) == (True, []), receipt
        return receipt


SERVING_SPEED = "20"
"""Tokens come this many times faster than from the real accelerator: nothing here is about their pace, and an L4 makes a command wait for half a minute."""
HF_CANARY = "hf_canaryCanaryCANARY0123456789"
KEY_CANARY = "canaryKEYcanaryKEY0123456789"


def assert_nowhere_in_clear(workspace, *canaries):
    """Look for secrets in everything that was printed or written: only the simulated Secret Manager may keep them."""
    for canary in canaries:
        assert all(canary not in text for text in workspace.transcript)
        clear = [path for path in _files(workspace.folder) if canary.encode() in (workspace.folder / path).read_bytes()]
        assert [path for path in clear if not path.startswith("cloud/") or "secret" not in path] == []


def _files(folder):
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and ".venv" not in path.parts:
            yield path.relative_to(folder).as_posix()


def assert_golden_urns(workspace, stack):
    """Compare the state's URNs with the recorded ones: a URN that changes without an alias deletes and recreates what users run."""
    path = Path(__file__).with_name("golden") / f"{stack}.urns"
    urns = [resource["urn"] for resource in workspace.resources(stack)]
    found = sorted(urn for urn in urns if "::pulumi:providers:" not in urn)
    recorded = golden(path, "\n".join(found) + "\n").splitlines()
    assert found == recorded, f"Give renamed resources aliases. {if_meant()}"


def copy_project(target):
    """Copy what a user's checkout has."""
    target.mkdir(parents=True)
    for pattern in ("Pulumi.yaml", "*.txt", "*.toml", "__main__.py", "gemma"):
        for path in ROOT.glob(pattern):
            shutil.copy2(path, target / path.name)
    for path in shipped_files(ROOT):
        shutil.copy2(path, target / path.name)  # an example is deployed from the project's folder
    for room in ROOMS:
        copy_room(ROOT / room, target / room)
    (target / ".venv").symlink_to(Path(sys.prefix))


def cloud_environment(folder):
    """Return what `localcloud env --json` prints, without a process of its own: its start loads the whole cloud."""
    log = folder / "serve.log"
    until(lambda: "Admin API:" in log.read_text(), "the local cloud is up")

    def read():
        with contextlib.suppress(StateError):
            return description((folder / "cloud").resolve())

    known = until(read, "the local cloud describes itself")
    return dict(in_shell(known["environment"], known["commands"]))


@pytest.fixture(scope="module")
def workspace(request, tmp_path_factory):
    """One cloud for the tests of a module; they use different stacks or follow one another."""
    cold = getattr(request.module, "COLD_STARTS", False)
    with open_workspace(tmp_path_factory.mktemp("workspace"), cold=cold) as opened:
        yield opened


@contextlib.contextmanager
def open_workspace(folder, *options, cold=False, serving_speed=SERVING_SPEED):
    """Copy the project and run a local cloud with the options beside it.

    Without `--scenario` it is the world `prepared`: APIs on and quota granted, so that not every test begins with a new project's steps.
    Programs run in forks of one process that has imported their packages, unless `cold`: then the engine starts an interpreter for each, as a user's does.
    """
    if "--scenario" not in options:
        options = ("--scenario", "prepared", *options)
    copy_project(folder / "project")
    with (folder / "serve.log").open("w") as log:
        cloud = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "localcloud",
                "serve",
                "--providers=standin",
                f"--state={folder / 'cloud'}",
                *options,
            ],
            cwd=folder / "project",
            env={**os.environ, "VLLM_SIM_SPEED": serving_speed},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
        base = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        environment = {**base, **cloud_environment(folder)}
        with contextlib.ExitStack() as held:
            warm = {
                kind: held.enter_context(project_programs(kind, folder / "project", environment))
                for kind in ("programs", "commands")
                if not cold
            }
            programs = {} if cold else {WARM_PROGRAMS: str(warm["programs"])}
            yield Workspace(folder, {**environment, **programs}, commands=warm.get("commands"))
    finally:
        cloud.send_signal(signal.SIGINT)
        try:
            cloud.wait(timeout=30)
        except subprocess.TimeoutExpired:
            cloud.kill()
