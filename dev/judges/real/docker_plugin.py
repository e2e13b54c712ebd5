"""A project whose program declares the product's serving image alone, built by the real pulumi-docker or by the local cloud's stand-in."""

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Final, TypedDict, cast

import pytest

from dev.judges.real.daemon import DockerDaemon
from dev.judges.real.home import ROOT, Need, RealHome, run
from dev.judges.real.local_cloud import LocalCloud
from dev.judges.real.registry import ImageRegistry
from dev.judges.real_vllm.environment import last_line

PROGRAM: Final = Path(__file__).with_name("image_program")
LOCATION: Final = "us-east5"
HOST: Final = f"{LOCATION}-docker.pkg.dev"
ADDRESS: Final = "127.0.0.78"
"""Loopback address of the registry under Google's name. Docker speaks plain HTTP to it."""
UPSTREAM: Final = "vllm/vllm-tpu"
PROJECT: Final = "local-project"
_INSTALL_LIMIT_S: Final = 300
IMAGE: Final = "docker:index/image:Image"
FILES: Final = {
    "Dockerfile": 'ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY said.txt /said.txt\nRUN cp /said.txt /built.txt\nCMD ["cat", "/built.txt"]\n',
    "said.txt": "first\n",
}


class _PreviewedStep(TypedDict):
    op: str
    newState: dict[str, object]
    detailedDiff: dict[str, dict[str, str]] | None


class _Resource(TypedDict):
    type: str
    inputs: dict[str, object]
    outputs: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginProject:
    """A project folder with the program, and everything that it talks to."""

    stack: str
    folder: Path
    cloud: LocalCloud
    daemon: DockerDaemon
    registry: ImageRegistry
    variables: Mapping[str, str]

    @property
    def repository(self) -> str:
        """The repository of the stack."""
        return f"judged-{self.stack}"

    @property
    def context(self) -> Path:
        """Folder of the image."""
        return self.folder / "image"

    def pulumi(self, *words: str) -> CompletedProcess[str]:
        """Run the engine on the stack."""
        return self.cloud.pulumi(self.folder, *words, "--stack", self.stack, variables=self.variables)

    def up(self) -> CompletedProcess[str]:
        """Deploy without a preview."""
        return self.pulumi("up", "--yes", "--skip-preview")

    def ref(self) -> str:
        """Return the reference that the component returned."""
        return self.pulumi("stack", "output", "ref").stdout.strip()

    def pushed(self) -> str:
        """Return the digest that the registry has under the image's name, empty if none."""
        return self.registry.digest(f"{PROJECT}/{self.repository}/{UPSTREAM}", "latest") or ""

    def image(self) -> dict[str, object]:
        """Return the image's inputs and outputs in the state, with secrets in plain text."""
        state = json.loads(self.pulumi("stack", "export", "--show-secrets").stdout)
        found = next(
            each for each in cast("list[_Resource]", state["deployment"]["resources"]) if each["type"] == IMAGE
        )
        return {f"{part}.{name}": value for part in ("inputs", "outputs") for name, value in found[part].items()}


def pulumi_home() -> Path:
    """Return the folder in which the engine keeps plugins."""
    found = os.environ.get("PULUMI_HOME")
    return Path(found) if found else Path.home() / ".pulumi"


def get_plugin(home: RealHome) -> str:
    """Return the version of the plugin, which is installed or which the engine downloads: the one of its Python package."""
    wanted = version("pulumi-docker")
    program = pulumi_home() / "plugins" / f"resource-docker-v{wanted}" / "pulumi-resource-docker"
    if program.is_file():
        return wanted
    home.get(Need(what=f"plugin pulumi-docker {wanted}", where=str(pulumi_home()), disk_gib=0.1, takes_s=30))
    command = [str(Path(sys.executable).with_name("pulumi")), "plugin", "install", "resource", "docker", wanted]
    with suppress(TimeoutExpired):
        run(command, limit_s=_INSTALL_LIMIT_S)
    if not program.is_file():
        pytest.skip(f"pulumi-docker {wanted} is not installed in {pulumi_home()} and cannot be downloaded here")
    return wanted


def detailed(bench: PluginProject) -> dict[str, str]:
    """Return the properties that a preview changes in the image, and how."""
    preview = cast("dict[str, list[_PreviewedStep]]", json.loads(bench.pulumi("preview", "--json").stdout))
    step = next(each for each in preview["steps"] if each["newState"]["type"] == IMAGE)
    return {"step": step["op"]} | {name: each["kind"] for name, each in (step["detailedDiff"] or {}).items()}


def plain(bench: PluginProject) -> dict[str, str]:
    """Return the image's outputs as texts, without digests and the folder's path."""
    text = {name: json.dumps(value, sort_keys=True) for name, value in bench.image().items()}
    digest = re.compile(r"\b[0-9a-f]{64}\b")
    return {
        name: digest.sub("DIGEST", value).replace(str(bench.folder), "FOLDER").replace(bench.repository, "REPOSITORY")
        for name, value in text.items()
    }


def differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return each name with another value."""
    names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    return "; ".join(f"{name} {found.get(name)} instead of {wanted.get(name)}" for name in names)


def check_prints(bench: PluginProject, word: str) -> None:
    """Pull the reference with an empty store, and run it."""
    ref = bench.ref()
    bench.daemon.docker("image", "prune", "--all", "--force")
    bench.daemon.docker("rmi", "--force", f"{HOST}/{PROJECT}/{bench.repository}/{UPSTREAM}")
    done = bench.daemon.docker("run", "--rm", "--network=none", ref)
    assert done.stdout.strip() == word, (
        f"the image prints {done.stdout!r} instead of {word}: {done.stderr.strip()[:200]}"
    )


def check_success(done: CompletedProcess[str]) -> None:
    """Require exit code 0."""
    assert done.returncode == 0, f"exit code {done.returncode}: {error_of(done)}"


def error_of(done: CompletedProcess[str]) -> str:
    """Return the first error of the engine or a provider."""
    text = done.stdout + done.stderr
    found = re.findall(r"^\s*(error: .*(?:\n\s{4,}.*)?)", text, re.MULTILINE)
    reasons = [each for each in found if not each.endswith(("update failed", "preview failed"))]
    return " ".join((reasons[0] if reasons else last_line(text)).split())


def push_base(daemon: DockerDaemon, upstream: ImageRegistry) -> str:
    """Push a base image with a shell under the upstream image's name, and return its digest."""
    name = f"{upstream.address}/{UPSTREAM}:base"
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder) / "root/bin"
        programs.mkdir(parents=True)
        shutil.copy2("/bin/busybox", programs / "busybox")
        for each in ("sh", "cat", "cp", "echo"):
            (programs / each).symlink_to("busybox")
        archive = Path(folder) / "base.tar"
        run(["tar", "--create", f"--file={archive}", f"--directory={programs.parent}", "bin"])
        for step in (("import", str(archive), name), ("push", name), ("rmi", name)):
            done = daemon.docker(*step)
            assert done.returncode == 0, f"docker {step[0]}: {last_line(done.stderr)}"
    digest = upstream.digest(UPSTREAM, "base")
    assert digest is not None, "the base image is not in the registry"
    return str(digest)


def plugin_project(
    home: RealHome,
    cloud: LocalCloud,
    daemon: DockerDaemon,
    registry: ImageRegistry,
    digest: str,
    *,
    simulated: bool = False,
) -> PluginProject:
    """Copy the program and the image's folder, and make the stack. `simulated`: the stand-in builds."""
    stack = "simulated" if simulated else "real"
    folder = home.folder / "programs" / stack
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PROGRAM, folder)
    write_files(folder / "image")
    plugins = cloud.environment["PULUMI_DEBUG_PROVIDERS"].split(",")
    kept = [each for each in plugins if simulated or not each.startswith("docker:")]
    variables = {
        **daemon.environment,
        "PULUMI_HOME": str(pulumi_home()),
        "PULUMI_DEBUG_PROVIDERS": ",".join(kept),
        "PYTHONPATH": str(ROOT),
    }
    bench = PluginProject(
        stack=stack, folder=folder, cloud=cloud, daemon=daemon, registry=registry, variables=variables
    )
    settings = {"project": PROJECT, "location": LOCATION, "repository": bench.repository, "upstream": UPSTREAM}
    settings |= {"digest": digest, "context": bench.context.name}
    (folder / ".venv").symlink_to(ROOT / ".venv")
    cloud.pulumi(folder, "stack", "init", stack, variables=variables)
    words = [f"--plaintext={name}={value}" for name, value in settings.items()]
    check_success(cloud.pulumi(folder, "config", "set-all", "--stack", stack, *words, variables=variables))
    return bench


def write_files(context: Path) -> None:
    """Write the image's folder as it is at the start."""
    context.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (context / name).write_text(text, encoding="utf-8")
