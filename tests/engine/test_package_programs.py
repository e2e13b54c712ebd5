"""examples/package_python and package_yaml outside the checkout, by the commands of docs/package.md: added, rejected, deployed, changed, destroyed."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.engine.conftest import HF_CANARY, PROJECT, ROOT, assert_nowhere_in_clear, copy_project, open_workspace
from tests.engine.consumer import PACKAGES, command_line, yaml_host

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(1800)]

ACCOUNT = f"package-server@{PROJECT}.iam.gserviceaccount.com"
COPY, ADD, UP = re.findall(
    r"```sh\n(.*?)```",
    (ROOT / "docs" / "package.md").read_text().partition("## Add the package to a program")[2],
    flags=re.DOTALL,
)[:3]
PROGRAMS = {"python": "__main__.py", "yaml": "Pulumi.yaml"}
TPU = """\
name: package-tpu
runtime: yaml
config:
  serviceAccount: {type: string}
resources:
  own:
    type: gcp:compute:Network
    properties: {autoCreateSubnetworks: false}
  subnet:
    type: gcp:compute:Subnetwork
    properties: {network: "${own.id}", region: us-east5, ipCidrRange: 10.0.0.0/24, privateIpGoogleAccess: true}
  router:
    type: gcp:compute:Router
    properties: {network: "${own.id}", region: us-east5}
  nat:
    type: gcp:compute:RouterNat
    properties:
      router: ${router.name}
      region: us-east5
      natIpAllocateOption: AUTO_ONLY
      sourceSubnetworkIpRangesToNat: ALL_SUBNETWORKS_ALL_IP_RANGES
  gemma:
    type: gemma-serving:TpuQueuedResource
    properties:
      project: ${gcp:project}
      queuedResourceId: package-gemma
      serviceAccount: ${serviceAccount}
      network: ${own.id}
      subnetwork: ${subnet.name}
      model: google/gemma-4-E2B-it
      vllm: {maxModelLen: 8192}
      tpu: {acceleratorType: v6e-1, zones: [us-east5-a], maxRunDuration: 4h, waitPerZone: 24h}
    options: {dependsOn: ["${nat}"]}
outputs: {zone: "${gemma.zone}"}
"""
SECOND = {
    "python": """
gemma.CloudRunGpuService(
    "other",
    project=project,
    service_name="package-other",
    service_account=account,
    model="google/gemma-4-12B-it",
    secrets={"HF_TOKEN": token.version_name},
    cloud_run={"region": "us-east4", "gpu": "nvidia-l4", "cpu": 8, "memory": "20Gi", "concurrency": 16, "max_instances": 1},
)
""",
    "yaml": """\
  other:
    type: gemma-serving:CloudRunGpuService
    properties:
      project: ${gcp:project}
      serviceName: package-other
      serviceAccount: ${serviceAccount}
      model: google/gemma-4-12B-it
      secrets: {HF_TOKEN: "${hf-token.versionName}"}
      cloudRun: {region: us-east4, gpu: nvidia-l4, cpu: 8, memory: 20Gi, concurrency: 16, maxInstances: 1}
outputs:
""",
}
"""Another server that does not fit, for the end of a program and for the end of its resources."""
OWN_FOLDERS = ("components", "scripts", "stacks")
"""Folders of the consumer with the names of folders of the checkout, where the plugins run."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    with open_workspace(folder, cold=True) as opened:
        opened.environment.pop("PYTHONPATH", None)
        opened.post(f"iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "package-server"})
        nat = {"name": "nat", "natIpAllocateOption": "AUTO_ONLY"}
        ranges = {"sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES"}
        router = {"name": "nat", "network": f"projects/{PROJECT}/global/networks/default", "nats": [{**nat, **ranges}]}
        opened.post(f"compute/compute/v1/projects/{PROJECT}/regions/us-east5/routers", router)
        yield opened


class Consumer:
    """A program in a folder outside the checkout."""

    def __init__(self, workspace, name, file):
        self.workspace = workspace
        self.folder = workspace.folder / "consumers" / name
        self.file = self.folder / file
        paths = [command_line(workspace.folder / "bin").parent, yaml_host() if file == "Pulumi.yaml" else None]
        self.path = os.pathsep.join([*(str(path) for path in paths if path), workspace.environment["PATH"]])

    def run(self, lines, **options):
        """Run commands of the page as a person does, who answers yes."""
        for placeholder, value in {"CHECKOUT": str(ROOT), "PROJECT": PROJECT, "EMAIL": ACCOUNT}.items():
            lines = lines.replace(placeholder, value)
        environment = {"PATH": self.path, "PULUMI_SKIP_CONFIRMATIONS": "true"}
        script = f"cd {self.folder if self.folder.exists() else self.folder.parent}\n{lines}"
        return self.workspace.run("bash", "-euc", script, environment=environment, **options)

    def edit(self, before, after):
        """Replace a part of the program that occurs once."""
        text = self.file.read_text()
        assert text.count(before) == 1
        self.file.write_text(text.replace(before, after))


@pytest.fixture(scope="module", params=PROGRAMS)
def consumer(workspace, request):
    """A program with both packages, in a folder that has its own `components` and `scripts`."""
    made = Consumer(workspace, request.param, PROGRAMS[request.param])
    made.folder.parent.mkdir(parents=True, exist_ok=True)
    made.run(COPY.replace("package_python", f"package_{request.param}").replace("my-gemma", request.param))
    for name in OWN_FOLDERS:
        (made.folder / name).mkdir()
        (made.folder / name / "__init__.py").write_text(f"OWN = '{request.param}'\n")
    if request.param == "python":
        with made.file.open("a") as program:
            program.writelines(f"import {name}\nassert {name}.OWN == 'python'\n" for name in OWN_FOLDERS)
    made.run(ADD, stdin=HF_CANARY)
    return made


def test_both_packages_are_added_with_their_paths(consumer):
    settings = (consumer.folder / "Pulumi.yaml").read_text()
    assert all(f": {path}\n" in settings for path in PACKAGES.values())
    requirements = consumer.folder / "requirements.txt"
    if requirements.exists():
        assert requirements.read_text().splitlines()[1:] == ["sdks/gemma-serving", "sdks/gcp-tpu"]


def test_the_python_program_has_the_types_of_its_sdk(consumer):
    if consumer.file.suffix != ".py":
        pytest.skip("a program in YAML has no types")
    pyright = Path(sys.executable).with_name("pyright")
    command = f"{pyright} --pythonpath venv/bin/python __main__.py"
    assert "0 errors" in consumer.run(command).out
    restored = consumer.file.read_text()
    consumer.edit('"max_instances"', '"max_instance"')
    assert (
        '"dict[str, str | int]" is not assignable to "CloudRunSettingsArgsDict"' in consumer.run(command, expect=1).out
    )
    consumer.file.write_text(restored)


def test_a_blocked_plan_is_refused_before_anything_is_declared(workspace, consumer):
    restored = consumer.file.read_text()
    consumer.edit("gemma-4-E2B-it", "gemma-4-31B-it")
    if consumer.file.suffix == ".py":
        consumer.file.write_text(consumer.file.read_text() + SECOND["python"])
    else:
        consumer.edit("outputs:\n", SECOND["yaml"])
    for command in ("pulumi preview", UP):
        said = consumer.run(command, expect=None)
        assert said.code != 0
        assert "is blocked by FIT01" in said.text
        assert "Nothing was declared." in said.text
        for name, model in (("gemma", "31B"), ("other", "12B")):
            assert f'CloudRunGpuService "{name}":' in said.text
            assert said.text.count(f"FIT01: google/gemma-4-{model}-it does not fit on L4: loading needs") == 1
    consumer.file.write_text(restored)
    assert workspace.made("package-gemma") == workspace.made("package-hf") == []


def test_it_is_previewed_deployed_changed_in_place_and_destroyed_and_nothing_is_left(workspace, consumer):
    existed = workspace.made("")
    assert "+ 7 to create" in consumer.run("pulumi preview").out
    assert workspace.made("package-gemma") == []
    consumer.run(UP)
    (service,) = [name for name in workspace.made("package-gemma") if "/services/" in name]
    consumer.run("pulumi preview --expect-no-changes")
    consumer.edit("8_192" if consumer.file.suffix == ".py" else "8192", "4096")
    changed = consumer.run(UP).out
    assert "~ 1 to update" in changed
    assert "replace" not in changed
    assert "--max-model-len=4096" in str(workspace.get("run", f"v2/{service}"))
    assert_nowhere_in_clear(workspace, HF_CANARY)
    consumer.run("pulumi destroy\npulumi stack rm dev")
    assert set(workspace.made("")) <= set(existed)


def test_a_tpu_server_is_deployed_changed_in_place_and_destroyed(workspace):
    consumer = Consumer(workspace, "tpu", "Pulumi.yaml")
    consumer.folder.mkdir(parents=True)
    consumer.file.write_text(TPU)
    consumer.run(ADD, stdin="unused")
    existed = workspace.made("")
    consumer.run("pulumi up")
    assert consumer.run("pulumi stack output zone").out == "us-east5-a\n"
    consumer.run("pulumi preview --expect-no-changes")
    nodes = workspace.made("nodes/package-gemma")
    consumer.edit("8192", "4096")
    assert "~ 1 to update" in consumer.run("pulumi up").out
    assert workspace.made("nodes/package-gemma") == nodes != []
    consumer.run("pulumi destroy\npulumi stack rm dev")
    assert set(workspace.made("")) <= set(existed)


def test_a_checkout_without_an_environment_gets_one_with_the_pinned_packages(workspace):
    """The engine clones a repository and then does the same."""
    clone = workspace.folder / "clone"
    copy_project(clone)
    (clone / ".venv").unlink()
    consumer = Consumer(workspace, "of-a-clone", "Pulumi.yaml")
    consumer.folder.mkdir(parents=True)
    consumer.file.write_text(TPU)
    consumer.run(ADD.replace("CHECKOUT", str(clone)), stdin="unused")
    assert "+ 7 to create" in consumer.run("pulumi preview").out
    assert (clone / ".venv" / "bin" / "python").exists()
