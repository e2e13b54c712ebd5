"""The provider under the real Pulumi engine, on the local cloud: a program with one queued resource, through its whole life.

What is marked `long` is asserted without an engine in the provider's own test_check.py (mistakes), test_lifecycle.py, test_faults.py and
test_renewal.py, in test_provider_waits.py and test_capacity_schedules.py (kills), or of the whole program in tests/engine/test_tpu_stack.py.
Only this file shows that the engine itself keeps the state of an interrupted creation.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.engine.conftest import cloud_environment
from tests.engine.warm import warm_programs
from tests.polling import until
from tools.engine.language_host import WARM_PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
PULUMI = Path(sys.executable).with_name("pulumi")
LIMIT_S = 240
PARENT = "v2alpha1/projects/local-project/locations"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not PULUMI.exists(), reason="`make setup` puts the engine beside the interpreter"),
]

PROGRAM = """
import json, pathlib, pulumi
with open("../starts", "a") as starts:
    starts.write("x")
class QueuedResource(pulumi.CustomResource):
    def __init__(self, name, inputs, opts=None):
        super().__init__("gcp-tpu:index:QueuedResource", name, {"zone": None, "state": None, "createTime": None, **inputs}, opts)
given = json.loads(pathlib.Path("inputs.json").read_text())
if given:
    resource = QueuedResource("serve", given, pulumi.ResourceOptions(import_=given.pop("importName", None)))
    pulumi.export("zone", resource.zone)
    pulumi.export("createTime", resource.createTime)
"""


@dataclass
class Project:
    """A Pulumi project of its own in a folder, and the cloud that it runs against."""

    folder: Path
    cloud: Path
    environment: dict[str, str]
    transcript: list[str] = field(default_factory=list)

    def declare(self, **changes: Any) -> None:
        (self.folder / "inputs.json").write_text(json.dumps(inputs(**changes)))

    def command(self, *arguments: str) -> list[str]:
        return [str(PULUMI), *arguments, "--non-interactive", "--stack", "dev"]

    def pulumi(self, *arguments: str, expect: int = 0, **environment: str) -> str:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        text = done.stdout + done.stderr
        self.transcript.append(text)
        assert (done.returncode == 0) == (expect == 0), text
        return text

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start without waiting, in a process group of its own as a terminal does."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def state(self) -> dict[str, Any] | None:
        text = (self.cloud / "pulumi/.pulumi/stacks/provider-engine/dev.json").read_text()
        found = [
            item
            for item in json.loads(text)["checkpoint"]["latest"].get("resources", [])
            if item["type"] == "gcp-tpu:index:QueuedResource"
        ]
        return found[0] if found else None

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.environment['GOOGLE_OAUTH_ACCESS_TOKEN']}"}
        return requests.request(
            method,
            self.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] + path,
            headers=headers,
            timeout=60,
            **options,
        )

    def listed(self, zone: str) -> list[dict[str, Any]]:
        answer = self.call("GET", f"{PARENT}/{zone}/queuedResources")
        answer.raise_for_status()
        return answer.json().get("queuedResources", [])

    def everything(self) -> list[str]:
        return [item["name"] for zone in ("us-east5-a", "us-east5-b") for item in self.listed(zone)]

    def capacity(self, **free: int) -> None:
        """Set how many v6e-4 are free in each zone."""
        url = f"{self.environment['LOCALCLOUD_URL']}/admin/scenario"
        identity = {"Authorization": f"Bearer {self.environment['LOCALCLOUD_TOKEN']}"}
        zones = requests.get(url, headers=identity, timeout=60).json()["tpu"]["zones"]
        for zone, number in free.items():
            zones[zone.replace("_", "-")]["capacity"] = {"v6e-4": number}
        requests.put(
            f"{url}?merge=true", json={"tpu": {"zones": zones}}, headers=identity, timeout=60
        ).raise_for_status()

    def advance(self, seconds: float) -> None:
        """Move the cloud's clock."""
        url = f"{self.environment['LOCALCLOUD_URL']}/admin/advance"
        identity = {"Authorization": f"Bearer {self.environment['LOCALCLOUD_TOKEN']}"}
        requests.post(url, json={"seconds": seconds}, headers=identity, timeout=60).raise_for_status()


def inputs(**changes: Any) -> dict[str, Any]:
    base = {
        "zones": ["us-east5-a", "us-east5-b"],
        "queuedResourceId": "serve",
        "acceleratorType": "v6e-4",
        "runtimeVersion": "v2-alpha-tpuv6e",
        "provisioningModel": "flex-start",
        "maxRunDurationS": 14400,
        "labels": {"managed-by": "gemma-serving"},
        "metadata": {"enable-guest-attributes": "TRUE"},
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("provider-engine")
    (folder / "program").mkdir()
    (folder / "program" / "__main__.py").write_text(PROGRAM)
    (folder / "program" / "Pulumi.yaml").write_text(
        "name: provider-engine\n"
        f"runtime: {{name: python, options: {{virtualenv: {sys.prefix}}}}}\n"
        f"plugins: {{providers: [{{name: gcp-tpu, path: {ROOT / 'packages' / 'gcp-tpu'}}}]}}\n"
    )
    hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
    base = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    options = ["--providers=standin", "--scenario=prepared", f"--state={folder / 'cloud'}"]
    serve = [sys.executable, "-m", "localcloud", "serve", *options]
    with (folder / "serve.log").open("w") as log:
        cloud = subprocess.Popen(serve, cwd=ROOT, env=base, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        warm = {WARM_PROGRAMS: str(warm_programs()[1])}
        project = Project(folder / "program", folder / "cloud", {**base, **warm, **cloud_environment(folder)})
        project.pulumi("stack", "init")
        yield project
    finally:
        cloud.send_signal(signal.SIGINT)
        try:
            cloud.wait(30)
        except subprocess.TimeoutExpired:
            cloud.kill()


@pytest.fixture(autouse=True)
def clean(project: Project) -> Iterator[None]:
    project.capacity(us_east5_a=4, us_east5_b=4)
    yield
    project.capacity(us_east5_a=4, us_east5_b=4)
    if project.state() or project.everything():
        project.pulumi("destroy", "--yes")
    assert project.everything() == []
    assert project.state() is None


def test_ctrl_c_in_the_wait_keeps_the_request_and_the_next_up_goes_on_with_it(project: Project):
    project.capacity(us_east5_a=0)
    project.declare()
    process = project.start("up", "--yes", "--skip-preview")
    until(
        lambda: any(item["state"]["state"] == "WAITING_FOR_RESOURCES" for item in project.listed("us-east5-a")),
        "the request waits",
    )
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "The request is kept in the state" in text
    state = project.state()
    assert state
    assert state["id"] == "projects/local-project/queuedResources/serve"
    assert state["initErrors"]
    (waiting,) = project.listed("us-east5-a")
    project.capacity(us_east5_a=1)
    project.pulumi("up", "--yes", "--skip-preview")
    state = project.state()
    assert state
    assert not state.get("initErrors")
    assert state["outputs"]["state"] == "ACTIVE"
    assert state["outputs"]["createTime"] == waiting["createTime"]


@pytest.mark.long
def test_an_engine_that_is_killed_loses_nothing(project: Project):
    project.capacity(us_east5_a=0)
    project.declare()
    process = project.start("up", "--yes", "--skip-preview")
    until(lambda: project.listed("us-east5-a"), "the request is made")
    (waiting,) = project.listed("us-east5-a")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert project.state() is None
    project.pulumi("cancel", "--yes")
    project.capacity(us_east5_a=1)
    project.pulumi("up", "--yes", "--skip-preview")
    state = project.state()
    assert state
    assert state["outputs"]["createTime"] == waiting["createTime"]


@pytest.mark.long
def test_a_zone_without_capacity_is_left_for_the_next_one(project: Project):
    project.capacity(us_east5_a=0)
    project.declare(waitPerZoneS=1)
    project.pulumi("up", "--yes", "--skip-preview")
    state = project.state()
    assert state
    assert state["outputs"]["zone"] == "us-east5-b"
    assert project.everything() == ["projects/local-project/locations/us-east5-b/queuedResources/serve"]
    assert [item["zone"] for item in state["outputs"]["stateHistory"]][-1] == "us-east5-b"


@pytest.mark.long
def test_a_suspended_one_is_seen_by_refresh_and_replaced_without_a_name_clash(project: Project):
    project.declare()
    project.pulumi("up", "--yes", "--skip-preview")
    state = project.state()
    assert state
    project.call("DELETE", f"v2alpha1/{state['outputs']['nodeName']}").raise_for_status()
    until(lambda: project.listed("us-east5-a")[0]["state"]["state"] == "SUSPENDED", "its node is gone")
    project.pulumi("up", "--yes", "--refresh", "--skip-preview")
    again = project.state()
    assert again
    assert again["outputs"]["state"] == "ACTIVE"
    assert again["outputs"]["createTime"] > state["outputs"]["createTime"]


@pytest.mark.long
def test_a_run_is_renewed_before_its_end_and_the_old_machine_is_deleted(project: Project):
    project.declare(maxRunDurationS=14400, renewBeforeS=3600)
    project.pulumi("up", "--yes", "--skip-preview")
    before = project.state()
    assert before
    project.pulumi("preview", "--expect-no-changes")
    project.advance(3.5 * 3600)
    shown = project.pulumi("preview", "--diff")
    assert "(update)" in shown
    assert "renewalName" in shown
    project.pulumi("up", "--yes", "--skip-preview")
    after = project.state()
    assert after
    assert after["outputs"]["name"] == "projects/local-project/locations/us-east5-a/queuedResources/serve-b"
    assert project.everything() == [after["outputs"]["name"]]
    assert after["outputs"]["nodeName"].endswith("/nodes/serve-node-b")
    assert after["id"] == before["id"]
    assert after["outputs"]["deadline"] > before["outputs"]["deadline"]
    project.pulumi("preview", "--expect-no-changes")
    project.pulumi("preview", "--refresh", "--expect-no-changes")
    project.declare(maxRunDurationS=14400, renewBeforeS=3600, tags=["other"])
    project.pulumi("up", "--yes", "--skip-preview")
    node = project.call("GET", f"v2alpha1/{after['outputs']['nodeName']}").json()
    assert node["tags"] == ["other"], "a change reaches the machine that serves now"
    project.pulumi("destroy", "--yes")
    assert project.everything() == []


@pytest.mark.long
def test_an_import_by_full_name_takes_over_what_is_there(project: Project):
    project.declare()
    project.pulumi("up", "--yes", "--skip-preview")
    state = project.state()
    assert state
    project.pulumi("state", "delete", "--yes", state["urn"])
    assert project.state() is None
    name = state["outputs"]["name"]
    project.declare(importName=name, project="local-project", network=state["inputs"].get("network"))
    project.pulumi("up", "--yes", "--skip-preview")
    imported = project.state()
    assert imported
    assert imported["id"] == "projects/local-project/queuedResources/serve"
    assert imported["outputs"]["createTime"] == state["outputs"]["createTime"]
    project.declare()
    project.pulumi("preview", "--expect-no-changes")


@pytest.mark.long
def test_mistakes_are_sentences_and_nothing_is_created(project: Project):
    wrong = {"metadata": {"canary-key": "canary-value"}, "ready": {"guestAttributeNamespace": "ns"}}
    project.declare(maxRunDurationS=604801, zones=["useast5"], **wrong)
    text = project.pulumi("up", "--yes", "--skip-preview", expect=1)
    assert "flex-start allows at most 604800 s (7 days)" in text
    assert "must be a zone such as us-east5-a" in text
    assert "`metadata` must contain `enable-guest-attributes: TRUE`" in text
    assert "canary-value" not in text
    project.declare()
    dead = project.pulumi(
        "up",
        "--yes",
        "--skip-preview",
        expect=1,
        CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU="http://127.0.0.1:9/",
    )
    assert "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU is http://127.0.0.1:9/, but nothing responds there" in dead
    assert "Traceback" not in text + dead
    assert project.state() is None


def test_neither_token_nor_metadata_values_are_shown(project: Project):
    assert project.transcript
    everything = "".join(project.transcript)
    assert project.environment["GOOGLE_OAUTH_ACCESS_TOKEN"] not in everything
