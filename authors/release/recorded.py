"""Recorded states of the provider's releases, over which the next release must run.

`record` brings a program up on the local cloud with one provider and stores its inputs, its state, and the requests that created its capacity.
tests/upgrade repeats the requests on an empty cloud, imports the state, and runs the present provider over it.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias, cast

Json: TypeAlias = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parents[2]
STATES: Final = ROOT / "tests" / "fixtures" / "provider_states"
PROVIDER: Final = ROOT / "packages" / "gcp-tpu"
PROJECT: Final = "upgrade"
STACK: Final = "dev"
LIMIT_S: Final = 600

QUEUED: Final[Json] = {
    "zones": ["us-east5-a", "us-east5-b"],
    "acceleratorType": "v6e-4",
    "runtimeVersion": "v2-alpha-tpuv6e",
    "provisioningModel": "flex-start",
    "maxRunDurationS": 14400,
    "validUntilDurationS": 7200,
    "enableExternalIps": True,
    "description": "recorded",
    "labels": {"team": "serving"},
    "tags": ["serving"],
    "metadata": {"enable-guest-attributes": "TRUE", "startup-script": "true"},
    "waitPerZoneS": 1800,
}
SPOT: Final[Json] = {
    "zone": "us-east5-b",
    "queuedResourceId": "own-id",
    "nodeId": "own-node",
    "acceleratorType": "v6e-1",
    "runtimeVersion": "v2-alpha-tpuv6e",
    "provisioningModel": "spot",
    "waitFor": "active",
}
INSTANCE: Final[Json] = {
    "api": "compute-engine",
    "zones": ["us-east5-a"],
    "acceleratorType": "v6e-1",
    "runtimeVersion": "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
    "provisioningModel": "flex-start",
    "maxRunDurationS": 3600,
    "bootDiskSizeGb": 100,
    "nextSteps": ["Try another region."],
}
RESOURCES: Final[Mapping[str, Json]] = {"queued": QUEUED, "spot": SPOT, "instance": INSTANCE}
"""Inputs of the recorded resources by name. 0.1.0 had no `instance`."""

PROGRAM: Final = """
import json, pathlib, pulumi
for name, inputs in json.loads(pathlib.Path("inputs.json").read_text()).items():
    pulumi.CustomResource("gcp-tpu:index:QueuedResource", name, inputs)
"""
_LEFT_OUT: Final = frozenset({"sourcePosition", "stackTrace", "created", "modified", "secrets_providers"})
"""Keys of a state that describe the recording machine and its clock, and the key of its secrets, of which it has none."""


def write_program(folder: Path, provider: Path, inputs: Mapping[str, Json]) -> None:
    """Write a Pulumi program that declares the resources and uses the provider in a folder."""
    folder.mkdir(parents=True)
    (folder / "__main__.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "inputs.json").write_text(json.dumps(inputs), encoding="utf-8")
    (folder / "Pulumi.yaml").write_text(
        f"name: {PROJECT}\nruntime: {{name: python, options: {{virtualenv: {sys.prefix}}}}}\n"
        f"plugins: {{providers: [{{name: gcp-tpu, path: {provider}}}]}}\n",
        encoding="utf-8",
    )


def record(
    release: str, *, provider: Path = PROVIDER, names: Sequence[str] = tuple(RESOURCES), out: Path = STATES
) -> Path:
    """Record the state that a provider makes, and return the file `RELEASE.json` in `out`.

    `provider` is the provider's folder, in another checkout for an earlier release; `names` are the resources that it knows.
    Raises subprocess.CalledProcessError if a command fails; its output has been printed.
    """
    with TemporaryDirectory(prefix="record-") as base:
        program = Path(base) / "program"
        inputs = {name: RESOURCES[name] for name in names}
        write_program(program, provider.resolve(), inputs)
        cloud = [
            sys.executable,
            "-m",
            "localcloud",
            "run",
            "--scenario",
            "prepared",
            "--state",
            str(Path(base) / "cloud"),
        ]
        subprocess.run(
            [*cloud, "--", sys.executable, "-m", "authors.release.recorded", str(program)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": "packages:packages/gcp-tpu", "VIRTUAL_ENV": sys.prefix},
            timeout=LIMIT_S,
            check=True,
        )
        found = json.loads((program / "found.json").read_text(encoding="utf-8"))
    path = out / f"{release}.json"
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"release": release, "inputs": inputs, **found}, indent=1) + "\n", encoding="utf-8")
    return path


def _inside(program: Path) -> None:
    """Bring the program up in the environment of a local cloud, and write what is recorded beside it."""
    _pulumi(program, "stack", "init", STACK)
    _pulumi(program, "up", "--yes", "--skip-preview", "--stack", STACK)
    exported = json.loads(_pulumi(program, "stack", "export", "--stack", STACK))
    found = {"requests": [*_changes()], "state": scrubbed(exported)}
    (program / "found.json").write_text(json.dumps(found), encoding="utf-8")


def _pulumi(program: Path, *arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("pulumi")), *arguments, "--non-interactive"]
    return subprocess.run(command, cwd=program, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True).stdout


def _changes() -> list[Json]:
    """Return the accepted requests that created or changed something, in order."""
    accepted = [
        item
        for item in _get("/admin/requests")["requests"]
        if item["method"] != "GET" and item["status"] == HTTPStatus.OK
    ]
    changes = [{key: item.get(key) for key in ("method", "path", "query", "body")} for item in accepted]
    for change in changes:
        if change["path"].endswith("/instances"):  # the log hides the keys of an instance's metadata
            made = _get(f"{change['path']}/{change['body']['name']}")
            change["body"]["metadata"] = {"items": made["metadata"]["items"]}
    return changes


def _get(path: str) -> Json:
    url = os.environ["LOCALCLOUD_URL"] + path
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {os.environ['LOCALCLOUD_TOKEN']}"})  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:  # noqa: S310 - as above
        return cast("Json", json.load(answer))


def scrubbed(state: object) -> Any:  # noqa: ANN401 - JSON
    """Return a state without what belongs to one machine: source positions, times, and the key of its secrets."""
    if isinstance(state, list):
        return [scrubbed(item) for item in cast("list[object]", state)]
    if isinstance(state, dict):
        items = cast("dict[str, object]", state).items()
        return {key: scrubbed(value) for key, value in items if key not in _LEFT_OUT}
    return state


if __name__ == "__main__":
    _inside(Path(sys.argv[1]))
