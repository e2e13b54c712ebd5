"""The provider's archive, as a user without the repository installs it: an empty PULUMI_HOME, and a program that names no path."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from authors.release import plugins, wheels
from gcp_tpu_provider import VERSION, python_sdk
from tests.agreement.registry_pages import samples
from tests.engine.conftest import cloud_environment
from tests.suite import COMMANDS, count

ROOT = Path(__file__).parents[2]
LIMIT_S = 480
PROGRAM = f"""
import pulumi
inputs = {{"zones": ["us-east5-a"], "acceleratorType": "v6e-4", "runtimeVersion": "v2-alpha-tpuv6e", "provisioningModel": "spot"}}
capacity = pulumi.CustomResource("gcp-tpu:index:QueuedResource", "serve", {{**inputs, "state": None}}, pulumi.ResourceOptions(version="{VERSION}"))
pulumi.export("state", capacity.state)
"""


def test_the_archive_is_the_same_each_time_and_starts_without_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive = plugins.provider_archive(tmp_path / "first")
    assert archive.name == f"pulumi-resource-gcp-tpu-v{VERSION}.tar.gz"
    assert archive.read_bytes() == plugins.provider_archive(tmp_path / "second").read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    assert archive.read_bytes() != plugins.provider_archive(tmp_path / "third").read_bytes(), "its date is the commit's"
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
        opened.extractall(tmp_path / "plugin", filter="data")
    names = [member.name for member in members]
    modules = {f"gcp_tpu_provider/{path.name}" for path in (plugins.FOLDER / "gcp_tpu_provider").glob("*.py")}
    assert names == sorted(names)
    assert {*names} == {*modules, *plugins.FILES, "LICENSE", "PulumiPlugin.yaml"}
    assert {(member.uid, member.gid, member.mode) for member in members} == {(0, 0, 0o644)}
    process = subprocess.Popen(
        [sys.executable, "-P", str(tmp_path / "plugin")],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline().strip().isdigit()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    loaded = "import pkgutil, importlib, gcp_tpu_provider as p; [importlib.import_module(f'{p.__name__}.{m.name}') for m in pkgutil.iter_modules(p.__path__)]"
    done = subprocess.run(
        [sys.executable, "-c", loaded],
        cwd=tmp_path / "plugin",
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), "each module finds what it imports"


@dataclass
class Machine:
    """A user's machine: an empty folder with a PULUMI_HOME, the installed plugin, and a running local cloud."""

    folder: Path
    command: Path
    archive: Path
    environment: dict[str, str]

    @property
    def plugins(self) -> Path:
        return self.folder / "home" / "plugins"

    @property
    def plugin(self) -> Path:
        return self.plugins / f"resource-gcp-tpu-v{VERSION}"

    @property
    def install(self) -> list[str]:
        return [str(self.command), "plugin", "install", "resource", "gcp-tpu", VERSION, "--file", str(self.archive)]

    def program(self, name: str, text: str) -> Path:
        """Write a program outside the checkout, without a section `plugins`, and create its stack."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "Pulumi.yaml").write_text(
            f"name: {name}\nruntime: {{name: python, options: {{virtualenv: {sys.prefix}}}}}\n"
        )
        (folder / "__main__.py").write_text(text)
        self.pulumi(folder, "stack", "init", "dev")
        return folder

    def pulumi(self, program: Path, *arguments: str, succeeds: bool = True) -> str:
        count(COMMANDS)
        done = subprocess.run(
            [str(self.command), *arguments, "--non-interactive"],
            cwd=program,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
        return done.stdout + done.stderr

    def elsewhere(self, name: str, path: Path) -> "Machine":
        """The same machine with another PULUMI_HOME, and a folder first on PATH."""
        variables = {"PULUMI_HOME": str(self.folder / name), "PATH": f"{path}{os.pathsep}{self.environment['PATH']}"}
        return replace(self, environment={**self.environment, **variables})

    def whole_life(self, program: Path) -> None:
        """Create what the program declares, expect no changes, and destroy it."""
        self.pulumi(program, "up", "--yes", "--skip-preview", "--stack", "dev")
        resources = json.loads(self.pulumi(program, "stack", "export", "--stack", "dev"))["deployment"]["resources"]
        assert [item["outputs"]["state"] for item in resources if item["type"] == "gcp-tpu:index:QueuedResource"] == [
            "ACTIVE"
        ]
        self.pulumi(program, "preview", "--refresh", "--expect-no-changes", "--stack", "dev")
        self.pulumi(program, "destroy", "--yes", "--skip-preview", "--stack", "dev")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, pulumi: Path) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_", "PYTHON", "VIRTUAL_ENV")
    base = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    serve = [sys.executable, "-m", "localcloud", "serve", "--scenario", "prepared", "--state", str(folder / "cloud")]
    with (folder / "serve.log").open("w") as log:
        cloud = subprocess.Popen(serve, cwd=ROOT, env=base, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        environment = {**base, **cloud_environment(folder), "PULUMI_HOME": str(folder / "home")}
        archive = plugins.provider_archive(folder / "dist")
        yield Machine(folder, pulumi, archive, environment)
    finally:
        cloud.send_signal(signal.SIGINT)
        cloud.wait(30)


@pytest.fixture
def installed(machine: Machine) -> Machine:
    """The machine with the plugin. The installation downloads its packages."""
    if not (machine.plugin / "venv").exists():
        machine.pulumi(machine.folder, *machine.install[1:])
    return machine


@pytest.mark.engine
@pytest.mark.long
def test_a_program_outside_the_checkout_uses_the_installed_plugin(installed: Machine):
    program = installed.program("outside", PROGRAM)
    installed.whole_life(program)
    wire = installed.plugin / "gcp_tpu_provider" / "wire.py"
    kept = shutil.move(wire, installed.folder / "wire.py")
    shown = installed.pulumi(program, "preview", "--stack", "dev", succeeds=False)
    assert f"`pulumi plugin install resource gcp-tpu {VERSION} --reinstall`" in shown, "a missing module is seen"
    shutil.move(kept, wire)


@pytest.mark.engine
@pytest.mark.long
def test_a_program_uses_the_command_of_the_wheel(machine: Machine):
    wheel = wheels.build(plugins.FOLDER, machine.folder / "dist")
    subprocess.run([sys.executable, "-m", "venv", str(machine.folder / "venv")], check=True)
    commands = machine.folder / "venv" / "bin"
    pip = [str(commands / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    locked = ["--require-hashes", "--requirement", str(plugins.FOLDER / "requirements.txt")]
    for arguments in (["install", *locked], ["install", "--no-deps", str(wheel)], ["check"]):
        subprocess.run([*pip, *arguments], cwd=machine.folder, check=True, timeout=LIMIT_S)
    user = machine.elsewhere("home-of-the-wheel", commands)
    program = user.program("wheel", PROGRAM)
    user.whole_life(program)
    shown = user.pulumi(program, "preview", "--stack", "dev")
    assert f"using pulumi-resource-gcp-tpu from $PATH at {commands}" in shown, "and not a plugin of this checkout"


@pytest.mark.engine
@pytest.mark.long
def test_the_registry_s_python_sample_runs(installed: Machine):
    written = subprocess.run([sys.executable, "-m", python_sdk.__name__], capture_output=True, text=True, check=True)
    program = installed.program("sample-python", samples()["python"])
    (program / "gcp_tpu.py").write_text(written.stdout)
    installed.whole_life(program)
