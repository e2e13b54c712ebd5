"""The provider under the real Pulumi engine, on the local cloud: the engine keeps the state of an interrupted creation."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dev.tools.engine.language_host import WARM_PROGRAMS
from localcloud.tests.conftest import Client
from tests.engine.conftest import cloud_environment
from tests.engine.warm import warm_programs
from tests.polling import until

ROOT = Path(__file__).resolve().parents[2]
PULUMI = Path(sys.executable).with_name("pulumi")
LIMIT_S = 240
ZONE = "us-east5-a"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not PULUMI.exists(), reason="`make setup` puts the engine beside the interpreter"),
]

PROGRAM = f"""
import pulumi
given = {{
    "zones": ["{ZONE}", "us-east5-b"], "queuedResourceId": "serve", "acceleratorType": "v6e-4", "runtimeVersion": "v2-alpha-tpuv6e",
    "provisioningModel": "flex-start", "maxRunDurationS": 14400, "labels": {{"managed-by": "gemma-serving"}},
}}
pulumi.CustomResource("gcp-tpu:index:QueuedResource", "serve", {{"state": None, "createTime": None, **given}})
"""


@dataclass
class Project:
    """A Pulumi project of its own in a folder, and the cloud that it runs against."""

    folder: Path
    cloud: Path
    environment: dict[str, str]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of the engine in a process group of its own, as a terminal does."""
        return subprocess.Popen(
            [str(PULUMI), *arguments, "--non-interactive", "--stack", "dev"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def pulumi(self, *arguments: str) -> str:
        process = self.start(*arguments)
        text, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, text
        return text

    def state(self) -> dict[str, Any]:
        """Return what the state has of the queued resource."""
        text = (self.cloud / "pulumi/.pulumi/stacks/provider-engine/dev.json").read_text()
        resources = json.loads(text)["checkpoint"]["latest"].get("resources", [])
        (found,) = (item for item in resources if item["type"] == "gcp-tpu:index:QueuedResource")
        return found

    @property
    def client(self) -> Client:
        return Client(self.environment["LOCALCLOUD_URL"], self.environment["LOCALCLOUD_TOKEN"])

    def listed(self) -> list[dict[str, Any]]:
        path = f"/tpu/v2alpha1/projects/local-project/locations/{ZONE}/queuedResources"
        return self.client.ok("GET", path).get("queuedResources", [])

    def capacity(self, free: int) -> None:
        """Set how many v6e-4 are free in the first zone."""
        changed = {"tpu": {"zones": {ZONE: {"capacity": {"v6e-4": free}}}}}
        self.client.ok("PUT", "/admin/scenario", changed, merge="true")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__main__.py").write_text(PROGRAM)
    (tmp_path / "program" / "Pulumi.yaml").write_text(
        "name: provider-engine\n"
        f"runtime: {{name: python, options: {{virtualenv: {sys.prefix}}}}}\n"
        f"plugins: {{providers: [{{name: gcp-tpu, path: {ROOT / 'packages' / 'gcp-tpu'}}}]}}\n"
    )
    hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
    base = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    options = ["--providers=standin", "--scenario=prepared", f"--state={tmp_path / 'cloud'}"]
    serve = [sys.executable, "-m", "localcloud", "serve", *options]
    with (tmp_path / "serve.log").open("w") as log:
        cloud = subprocess.Popen(serve, cwd=ROOT, env=base, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        environment = {**base, WARM_PROGRAMS: str(warm_programs()[1]), **cloud_environment(tmp_path)}
        yield Project(tmp_path / "program", tmp_path / "cloud", environment)
    finally:
        cloud.send_signal(signal.SIGINT)
        try:
            cloud.wait(30)
        except subprocess.TimeoutExpired:
            cloud.kill()


def test_ctrl_c_in_the_wait_keeps_the_request_and_the_next_up_goes_on_with_it(project: Project):
    project.pulumi("stack", "init")
    project.capacity(0)
    process = project.start("up", "--yes", "--skip-preview")
    until(
        lambda: any(item["state"]["state"] == "WAITING_FOR_RESOURCES" for item in project.listed()),
        "the request waits",
    )
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "The request is kept in the state" in text
    state = project.state()
    assert state["id"] == "projects/local-project/queuedResources/serve"
    assert state["initErrors"]
    (waiting,) = project.listed()
    project.capacity(1)
    text += project.pulumi("up", "--yes", "--skip-preview")
    state = project.state()
    assert not state.get("initErrors")
    assert state["outputs"]["state"] == "ACTIVE"
    assert state["outputs"]["createTime"] == waiting["createTime"]
    assert project.environment["GOOGLE_OAUTH_ACCESS_TOKEN"] not in text
    project.pulumi("destroy", "--yes")
    assert project.listed() == []
