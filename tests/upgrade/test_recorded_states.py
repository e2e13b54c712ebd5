"""States that releases of the provider made: the present provider takes them over, replaces nothing, changes in place and deletes.

`python -m authors.release record` records the state of the present release. Do not record an earlier one again to make a test pass.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from authors.release.recorded import PROVIDER, STACK, STATES, write_program
from tests.engine.conftest import cloud_environment
from tests.suite import COMMANDS, count

PULUMI = Path(sys.executable).with_name("pulumi")
LIMIT_S = 240
ROOT = Path(__file__).resolve().parents[2]
RECORDED = {path.stem: json.loads(path.read_text()) for path in sorted(STATES.glob("*.json"))}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(not PULUMI.exists(), reason="`make setup` puts the engine beside the interpreter"),
]


@dataclass
class Upgrade:
    """A recorded stack on a cloud of its own, and the program that declares it."""

    folder: Path
    environment: dict[str, str]

    @property
    def program(self) -> Path:
        return self.folder / "program"

    def pulumi(self, *arguments: str, succeeds: bool = True) -> str:
        count(COMMANDS)
        command = [str(PULUMI), *arguments, "--stack", STACK, "--non-interactive"]
        done = subprocess.run(
            command,
            cwd=self.program,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
        return done.stdout if succeeds else done.stdout + done.stderr

    def planned(self) -> tuple[dict[str, int], set[str]]:
        """The number of resources by operation, the stack included, and what changes as NAME.PROPERTY or NAME."""
        shown = json.loads(self.pulumi("preview", "--json"))
        steps = [(step["urn"].rpartition("::")[2], step) for step in shown["steps"] if step["op"] != "same"]
        return shown["changeSummary"], {
            f"{name}.{path}" for name, step in steps for path in step.get("detailedDiff") or {step["op"]: None}
        }

    def call(self, method: str, path: str, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.environment['LOCALCLOUD_TOKEN']}"}
        url = self.environment["LOCALCLOUD_URL"] + path
        answer = requests.request(method, url, headers=headers, timeout=60, **options)
        answer.raise_for_status()
        return answer.json()

    def capacity(self) -> list[str]:
        """The state of every queued resource and instance."""
        zones = ("us-east5-a", "us-east5-b")
        tpu, compute = (
            "/tpu/v2alpha1/projects/local-project/locations",
            "/compute/compute/v1/projects/local-project/zones",
        )
        queued = [
            item
            for zone in zones
            for item in self.call("GET", f"{tpu}/{zone}/queuedResources").get("queuedResources", [])
        ]
        instances = [
            item for zone in zones for item in self.call("GET", f"{compute}/{zone}/instances").get("items", [])
        ]
        return [item["state"]["state"] for item in queued] + [item["status"] for item in instances]

    def repeat(self, changes: list[dict[str, Any]]) -> None:
        """Send the requests of the recording, and wait until their capacity runs."""
        for change in changes:
            self.call(change["method"], change["path"], params=change["query"], json=change["body"])
        end = time.monotonic() + 60
        while not {*self.capacity()} <= {"ACTIVE", "RUNNING"}:
            assert time.monotonic() < end, self.capacity()
            time.sleep(0.1)


@contextmanager
def upgrade(folder: Path, recorded: dict[str, Any]) -> Iterator[Upgrade]:
    write_program(folder / "program", PROVIDER, recorded["inputs"])
    hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
    base = {key: value for key, value in os.environ.items() if not key.startswith(hidden)} | {"VIRTUAL_ENV": sys.prefix}
    serve = [sys.executable, "-m", "localcloud", "serve", "--scenario", "prepared", "--state", str(folder / "cloud")]
    with (folder / "serve.log").open("w") as log:
        cloud = subprocess.Popen(serve, cwd=ROOT, env=base, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        found = Upgrade(folder, {**base, **cloud_environment(folder)})
        found.repeat(recorded["requests"])
        (folder / "state.json").write_text(json.dumps(recorded["state"]))
        found.pulumi("stack", "init")
        found.pulumi("stack", "import", "--file", str(folder / "state.json"))
        yield found
    finally:
        cloud.send_signal(signal.SIGINT)
        cloud.wait(30)


@pytest.mark.parametrize("release", RECORDED)
def test_the_provider_takes_over_what_a_release_made(release: str, tmp_path: Path):
    recorded = RECORDED[release]
    with upgrade(tmp_path, recorded) as stack:
        number = len(recorded["inputs"])
        assert stack.planned() == ({"same": number + 1}, set())
        stack.pulumi("refresh", "--yes", "--skip-preview")
        assert stack.planned() == ({"same": number + 1}, set())
        stack.pulumi("preview", "--refresh", "--expect-no-changes")
        changed = {**recorded["inputs"]["queued"], "labels": {"team": "another"}, "waitPerZoneS": 600}
        (stack.program / "inputs.json").write_text(json.dumps({**recorded["inputs"], "queued": changed}))
        assert stack.planned() == ({"same": number, "update": 1}, {"queued.labels.team", "queued.waitPerZoneS"})
        stack.pulumi("up", "--yes", "--skip-preview")
        stack.pulumi("preview", "--refresh", "--expect-no-changes")
        assert len(stack.capacity()) == number
        stack.pulumi("destroy", "--yes", "--skip-preview")
        assert stack.capacity() == []


def test_an_input_with_another_name_is_seen(tmp_path: Path):
    """The fault that these tests are for: the program of a release no longer works."""
    provider = tmp_path / "gcp-tpu"
    shutil.copytree(PROVIDER, provider)
    table = provider / "gcp_tpu_provider" / "properties.py"
    renamed = (
        table.read_text()
        .replace('"description",\n        STRING', '"text",\n        STRING')
        .replace('"description", STRING', '"text", STRING')
    )
    assert renamed != table.read_text()
    table.write_text(renamed)
    with upgrade(tmp_path, RECORDED["0.2.0"]) as stack:
        project = stack.program / "Pulumi.yaml"
        project.write_text(project.read_text().replace(str(PROVIDER), str(provider)))
        assert "description" in stack.pulumi("preview", succeeds=False)


def test_a_recorded_state_holds_no_secret_and_no_path(subtests):
    for release in RECORDED:
        with subtests.test(release):
            text = (STATES / f"{release}.json").read_text()
            assert not [
                word for word in ("/root/", "/home/", "/tmp/", "/work/", "ciphertext", "[redacted]") if word in text
            ]
