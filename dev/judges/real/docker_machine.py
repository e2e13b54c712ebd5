"""A local cloud whose machines use a real Docker: daemon, registry under Google's names, image, and the project's copy."""

import json
import shutil
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pytest

from dev.judges.real import docker_here, runtime_here
from dev.judges.real.daemon import DockerDaemon, running_daemon
from dev.judges.real.docker_image import (
    COLLECTOR_ENTRY_POINT,
    PACKAGES,
    PYTHON,
    SERVER_ENTRY_POINT,
    base_archive,
    empty_archive,
    pushed,
)
from dev.judges.real.home import ROOT, RealHome, wait_until, write_script
from dev.judges.real.project import ProjectInCloud, project_in_cloud
from dev.judges.real.registry import ImageRegistry, running_registry
from dev.judges.real.relay import BreakingRelay, breaking_relay
from gemma_serving.contracts.collector import COLLECTOR_DIGEST, COLLECTOR_REPOSITORY
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.planning.data.images import IMAGES
from localcloud.running.shims import DOCKER_PROGRAM

SYS_RESOURCE_BIT: Final = 24
CONTAINER: Final = PRODUCT
"""Name of the server's container."""
COLLECTOR_CONTAINER: Final = f"{CONTAINER}-collector"
KILLED: Final = "137"
"""Exit code of a container that SIGKILL ended."""
_REGION: Final = "us-east5"
_HOST_ADDRESS: Final = "127.0.0.77"
HOSTS: Final = {f"{_REGION}-docker.pkg.dev": _HOST_ADDRESS, "us-docker.pkg.dev": _HOST_ADDRESS}
"""Google's registries on loopback, where Docker permits plain HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealMachines:
    """The project, its cloud, and the daemon and the registry of its machines. `image` is a reference with a digest."""

    project: ProjectInCloud
    daemon: DockerDaemon
    registry: ImageRegistry
    relay: BreakingRelay
    image: str
    empty: str
    """Digest of an image without a server."""
    program: Path
    variables: Mapping[str, str]
    """Variables of each container, besides the ones that its programs need."""
    mounts: tuple[str, ...]
    """Folders that each container gets at their own paths, read-only."""

    def use(self, daemon: DockerDaemon, **more: str) -> None:
        """Give the machines another daemon, or more variables in each container."""
        write_program(self.program, daemon, self.project.folder, self.mounts, {**self.variables, **more})

    def cloud_facts(self, stack: str) -> Mapping[str, Any]:
        """Return what `gemma status --json` says of a stack's machine."""
        found = self.project.gemma_json("status", stack, allowed=(ExitCode.DONE, ExitCode.FAILED, ExitCode.REFUSED))
        return cast("Mapping[str, Any]", found["stacks"][0]["cloud"])

    def container(self) -> str:
        """Return the id of the server's container, empty if there is none."""
        return self.daemon.docker("inspect", "--format={{.Id}}", CONTAINER).stdout.strip()

    def until_new_container(self, before: str) -> None:
        """Wait until the server has another container than `before`."""
        wait_until(lambda: self.container() not in ("", before), "a new container")

    def exit_codes(self, container: str, since_s: float) -> list[str]:
        """Return the exit codes with which a container has ended since a time of the clock."""
        window = (f"--since={int(since_s)}", f"--until={int(time.time()) + 1}")
        filters = ("--filter=event=die", f"--filter=container={container}")
        return self.daemon.docker("events", *window, *filters, "--format={{.Actor.Attributes.exitCode}}").stdout.split()


def lacks_sys_resource() -> bool:
    """Return whether this process cannot raise limits, so neither can a container."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    rights = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return not int(rights, 16) >> SYS_RESOURCE_BIT & 1


@contextmanager
def real_daemon(home: RealHome, name: str) -> Generator[DockerDaemon]:
    """Start a daemon that knows Google's registries, with the rights that this machine has."""
    runtime = None
    if lacks_sys_resource():
        runtime = home.folder / "runtime-here"
        write_script(runtime, {"PYTHONPATH": str(ROOT)}, [sys.executable, "-P", "-m", runtime_here.__name__])
    with running_daemon(
        home, name=name, bridge=False, hosts=HOSTS, runtime=runtime, arguments=("--max-download-attempts=1",)
    ) as daemon:
        yield daemon


@contextmanager
def real_machines(
    home: RealHome,
    *,
    name: str,
    stack: str,
    speed: float,
    variables: Mapping[str, str] | None = None,
    mounts: tuple[str, ...] = (),
    of_cloud: Mapping[str, str] | None = None,
    archive: Path | None = None,
) -> Generator[RealMachines]:
    """Start everything for the machines of one TPU stack, and end it. Skips the test.

    `variables` and `mounts`: of each container. `of_cloud`: variables of the cloud's process. `archive`: files of the server's image.
    """
    with ExitStack() as ends:
        registry = ends.enter_context(running_registry(home, name=name))
        host, _, port = registry.address.rpartition(":")
        try:
            relay = ends.enter_context(breaking_relay((_HOST_ADDRESS, 80), (host, int(port))))
        except OSError as error:
            pytest.skip(f"cannot listen on {_HOST_ADDRESS}:80: {error.strerror}")
        daemon = ends.enter_context(real_daemon(home, name))
        repository = f"{_REGION}-docker.pkg.dev/local-project/gemma-{stack}/vllm/vllm-tpu"
        base = base_archive(home)
        digest = pushed(daemon, archive or base, repository, SERVER_ENTRY_POINT)
        collector = pushed(daemon, base, COLLECTOR_REPOSITORY, COLLECTOR_ENTRY_POINT)
        empty = pushed(daemon, empty_archive(home.folder), repository, SERVER_ENTRY_POINT)
        program = home.folder / "docker-here"
        shutil.rmtree(client_folder(program), ignore_errors=True)
        project = ends.enter_context(
            project_in_cloud(
                home,
                name=name,
                speed=speed,
                variables={DOCKER_PROGRAM: str(program), **(of_cloud or {})},
                replaced={IMAGES["vllm-tpu"].digest: digest, COLLECTOR_DIGEST: collector},
            )
        )
        project.send("POST", "admin/images", {"images": [f"docker.io/vllm/vllm-tpu@{empty}"]})
        machines = RealMachines(
            project=project,
            daemon=daemon,
            registry=registry,
            relay=relay,
            image=f"{repository}@{digest}",
            empty=empty,
            program=program,
            variables=variables or {},
            mounts=(*needed_mounts(project.folder), *mounts),
        )
        machines.use(daemon)
        yield machines


def needed_mounts(project: Path) -> tuple[str, ...]:
    """Return the folders that each container needs: the interpreter with its packages, and the project."""
    return (sys.base_prefix, sys.prefix, str(project))


def server_variables(project: Path) -> dict[str, str]:
    """Return the variables of each container, by which the image's programs find the interpreter and the simulated server."""
    return {PYTHON: sys.executable, PACKAGES: str(project / "packages")}


def write_program(
    path: Path, daemon: DockerDaemon, project: Path, mounts: Sequence[str], variables: Mapping[str, str]
) -> None:
    """Write the program that the machines run as `docker`."""
    own = {
        docker_here.CLIENT: shutil.which("docker") or "docker",
        "DOCKER_HOST": daemon.host,
        docker_here.MOUNTS: ":".join(mounts),
        docker_here.SERVER: json.dumps({**server_variables(project), **variables}),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'packages'}",
    }
    kept = f'export DOCKER_CONFIG="${{DOCKER_CONFIG:-{client_folder(path)}}}"'
    write_script(path, own, [sys.executable, "-P", "-m", docker_here.__name__], kept)


def client_folder(program: Path) -> Path:
    """Return the folder of the client's settings on the machines, unless a command has its own. It is not the user's."""
    return program.with_name("client")
