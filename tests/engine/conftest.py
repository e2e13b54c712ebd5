"""The real CLI on a local cloud: a copy of the project, a cloud of its own, and the environment that goes with it."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from localcloud.environment import in_shell
from localcloud.world.state import StateError, description
from tests.engine.starts import counted_starts, note_starts
from tests.engine.warm import run_python, warm_programs
from tests.suite import COLD, COMMANDS, count
from tools.engine.language_host import WARM_PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "authors",
    "cloud",
    "components",
    "contracts",
    "engine",
    "evals",
    "examples",
    "images",
    "packages",
    "planning",
    "scripts",
    "stacks",
    "tools",
    "vm_agent",
)
LIMIT_S = 480

ASK = """
import sys
from scripts.cli.access import open_stack_access
from loadtest.client.openai import call_once
from engine.state import stack_outputs
outputs = stack_outputs(sys.argv[1])
with open_stack_access(outputs) as access:
    models = call_once(access.base_url, access.headers, "GET", "/v1/models", limit_s=30).body
print(models["data"][0]["max_model_len"])
"""

OUTPUTS = """
import json, sys
from contracts.fields import to_json
from engine.state import stack_outputs
print(json.dumps(to_json(stack_outputs(sys.argv[1]))))
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

    def run(self, *command, stdin="", expect=0, environment=None, limit_s=LIMIT_S):
        count(COMMANDS)
        words, folder = [str(part) for part in command], self.folder / "project"
        variables = {**self.environment, **(environment or {})}
        if variables.get(WARM_PROGRAMS) and words[0] == sys.executable:
            done = run_python(words[1:], variables, folder, stdin=stdin, limit_s=limit_s)
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
        if expect is not None:
            assert answer.code == expect, f"{command}: exit code {answer.code}\n{answer.text[-4000:]}"
        return answer

    def pulumi(self, *arguments, **options):
        return self.run(self.engine, *arguments, "--non-interactive", **options)

    def cold(self, *arguments):
        """Run the engine as a user does: it starts an interpreter for the program."""
        count(COLD)
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

    def admin(self, path):
        url = f"{self.environment['LOCALCLOUD_URL']}/admin/{path}"
        answer = requests.get(url, headers=self.identity, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def enable(self, *apis):
        """Enable APIs as `gcloud services enable` does."""
        base = self.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_SERVICEUSAGE"]
        for api in apis:
            url = f"{base}v1/projects/local-project/services/{api}:enable"
            requests.post(url, json={}, headers=self.identity, timeout=60).raise_for_status()

    def advance(self, seconds):
        url = f"{self.environment['LOCALCLOUD_URL']}/admin/advance"
        requests.post(url, json={"seconds": seconds}, headers=self.identity, timeout=60).raise_for_status()

    def change_scenario(self, changes):
        url = f"{self.environment['LOCALCLOUD_URL']}/admin/scenario?merge=true"
        requests.put(url, json=changes, headers=self.identity, timeout=60).raise_for_status()

    def put_scenario(self, scenario):
        url = f"{self.environment['LOCALCLOUD_URL']}/admin/scenario"
        requests.put(url, json=scenario, headers=self.identity, timeout=60).raise_for_status()

    def get(self, api, path):
        base = f"{self.environment['LOCALCLOUD_URL']}/{api}/"
        answer = requests.get(base + path, headers=self.identity, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def post(self, path, body):
        url = f"{self.environment['LOCALCLOUD_URL']}/{path}"
        answer = requests.post(url, json=body, headers=self.identity, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def state(self, stack):
        """The state file itself, as the engine wrote it."""
        return (self.folder / "cloud" / "pulumi" / ".pulumi" / "stacks" / "gemma-serving" / f"{stack}.json").read_text()

    def outputs(self, stack):
        """The stack's outputs as the commands read them, by their JSON keys."""
        return json.loads(self.run(sys.executable, "-c", OUTPUTS, stack).out)

    def served_length(self, stack):
        """Ask the running server for its max-model-len, through the way in that the stack's outputs name."""
        return int(self.run(sys.executable, "-c", ASK, stack).out)

    def wait_for_capacity(self, stack, limit="24h"):
        """Let a stack wait in its first zone until the test is over: 30 simulated minutes are 18 s, less than a command on a busy machine."""
        path = self.folder / "project" / f"Pulumi.{stack}.yaml"
        text, changed = re.subn("waitPerZone: .*", f"waitPerZone: {limit}", path.read_text())
        assert changed == 1
        path.write_text(text)

    def stage(self, stack):
        """Stage the stack's checkpoint from the local cloud's hub, as a user does."""
        return self.script("stage_model", "--stack", stack)


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
    resources = json.loads(workspace.state(stack))["checkpoint"]["latest"]["resources"]
    found = sorted(resource["urn"] for resource in resources if "::pulumi:providers:" not in resource["urn"])
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(found) + "\n")
    remedy = f"If the change is meant, give the resources aliases, then: UPDATE_GOLDEN=1 pytest {Path(__file__).parent.name} -k urns"
    assert found == path.read_text().splitlines(), remedy


def copy_project(target):
    """Copy what a user's checkout has; its program notes each start beside the copy."""
    target.mkdir(parents=True)
    for pattern in ("*.yaml", "*.txt", "*.toml", "__main__.py"):
        for path in ROOT.glob(pattern):
            shutil.copy2(path, target / path.name)
    for room in ROOMS:
        # compiled modules too: their times and sizes still fit
        shutil.copytree(ROOT / room, target / room)
    (target / ".venv").symlink_to(Path(sys.prefix))
    note_starts(target)


def cloud_environment(folder):
    """Return what `localcloud env --json` prints, without a process of its own: its start loads the whole cloud."""
    end = time.monotonic() + 60
    log = folder / "serve.log"
    while "Admin API:" not in log.read_text() and time.monotonic() < end:
        time.sleep(0.05)
    while True:
        try:
            known = description((folder / "cloud").resolve())
            return dict(in_shell(known["environment"], known["commands"]))
        except StateError as error:
            assert time.monotonic() < end, f"the local cloud did not come up: {error}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def workspace(request, tmp_path_factory):
    """One cloud for the tests of a module; they use different stacks or follow one another."""
    cold = getattr(request.module, "COLD_STARTS", False)
    with open_workspace(tmp_path_factory.mktemp("workspace"), cold=cold) as opened:
        yield opened


@contextlib.contextmanager
def open_workspace(folder, *options, cold=False):
    """Copy the project and run a local cloud with the options beside it.

    Without `--scenario` it is the world `prepared`: APIs on and quota granted, so that not every test begins with a new project's steps.
    Programs run in forks of one process that has imported their packages, unless `cold`: then the engine starts an interpreter for each, as a user's does.
    """
    if "--scenario" not in options:
        options = ("--scenario", "prepared", *options)
    copy_project(folder / "project")
    with (folder / "serve.log").open("w") as log:
        cloud = subprocess.Popen(
            [sys.executable, "-m", "localcloud", "serve", "--state", str(folder / "cloud"), *options],
            cwd=folder / "project",
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
        base = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        warm = {} if cold else {WARM_PROGRAMS: str(warm_programs()[1])}
        with counted_starts(folder / "project", cold=cold):
            yield Workspace(folder, {**base, **warm, **cloud_environment(folder)})
    finally:
        cloud.send_signal(signal.SIGINT)
        try:
            cloud.wait(timeout=30)
        except subprocess.TimeoutExpired:
            cloud.kill()
