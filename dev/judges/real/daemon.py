"""A real Docker daemon of a run's own: its own folders, socket, names of hosts and bridge. It shares nothing with a daemon of the machine."""

import json
import os
import shutil
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess, SubprocessError
from typing import Final

import pytest

from dev.judges.real.home import Need, RealHome, debian_packages, run
from dev.judges.real.service import Service

PACKAGES: Final = ("docker.io",)
DRIVERS: Final = ("overlay2", "vfs")
"""Storage drivers in the order in which they are tried. overlay2 starts a container in about 1 s, vfs copies the image: 6 s."""
_SOCKET_LIMIT: Final = 107  # bytes of a path of a Unix socket (sun_path of unix(7))
_ENDS_S: Final = 10.0


@dataclass(slots=True, kw_only=True)
class DockerDaemon:
    """A daemon that can be stopped, killed and started again. `folder` has its data, its sockets and nothing else."""

    folder: Path
    arguments: Sequence[str]
    log: Path
    namespace: Service | None = None
    """The process whose mount namespace the daemon enters. None: the machine's."""
    driver: str = ""
    version: str = ""
    """Of the daemon."""
    client_version: str = ""
    _service: Service | None = field(default=None, repr=False)

    @property
    def socket(self) -> Path:
        """The daemon's socket."""
        return self.folder / "docker.sock"

    @property
    def host(self) -> str:
        """The value of DOCKER_HOST."""
        return f"unix://{self.socket}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a client. Its settings are empty ones, not the user's."""
        return {"DOCKER_HOST": self.host, "DOCKER_CONFIG": str(self.folder / "client")}

    def docker(self, *arguments: str, limit_s: float = 120) -> CompletedProcess[str]:
        """Run a command of the real client on this daemon."""
        return run(["docker", *arguments], limit_s=limit_s, environment=self.environment)

    def start(self) -> None:
        """Start the daemon and wait until it responds. The first start chooses the storage driver. Skips the test."""
        refused: list[str] = []
        for driver in (self.driver,) if self.driver else DRIVERS:
            self._service = Service([*self.entering(), *self._command(driver)], self.log)
            try:
                self._service.start(self.responds)
            except pytest.skip.Exception as reason:
                refused.append(f"{driver}: {reason}")
                continue
            self.driver = driver
            return
        pytest.skip("; ".join(refused))

    def stop(self) -> None:
        """Stop the daemon as the system does: SIGTERM. Docker then stops the containers."""
        if self._service is not None:
            self._service.stop()

    def kill(self) -> None:
        """Kill the daemon. The kernel kills its containerd with it. The containers go on until the daemon is started again."""
        if self._service is not None:
            self._service.kill()
        # A daemon that finds the dying containerd waits for it, and gives up.
        until_s = time.monotonic() + _ENDS_S
        while processes_of(f"{self.folder}/exec/containerd/containerd.toml") and time.monotonic() < until_s:
            time.sleep(0.1)
        (self.folder / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def responds(self) -> bool:
        """Return whether the daemon answers, and store its version."""
        try:
            found = self.docker("version", "--format", "{{.Server.Version}} {{.Client.Version}}", limit_s=10)
        except SubprocessError:
            return False
        if found.returncode:
            return False
        server, client = found.stdout.split()
        self.version, self.client_version = server.partition("+")[0], client.partition("+")[0]
        return True

    def remove_containers(self) -> None:
        """Remove all containers of the daemon, running or not."""
        found = self.docker("ps", "--all", "--quiet", "--no-trunc").stdout.split()
        if found:
            self.docker("rm", "--force", "--volumes", *found)

    def end(self) -> None:
        """Remove the containers, stop the daemon, and end what a killed daemon left: shims, containers, mounts."""
        with suppress(OSError, SubprocessError):
            if self._service is not None and self._service.runs:
                self.remove_containers()
        self.stop()
        self._end_processes()
        if self.namespace is not None:
            self.namespace.stop()
        for mount in _mounts_below(self.folder):
            run(["umount", "--lazy", str(mount)])
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, driver: str) -> list[str]:
        return [
            *("dockerd", f"--host={self.host}", f"--pidfile={self.folder / 'pid'}", f"--storage-driver={driver}"),
            *(f"--data-root={self.folder / 'data'}", f"--exec-root={self.folder / 'exec'}"),
            *("--iptables=false", "--ip6tables=false", "--ip-forward=false", *self.arguments),
        ]

    def entering(self) -> list[str]:
        """Return the first words of a command that runs in the daemon's mount namespace."""
        return [] if self.namespace is None else ["nsenter", f"--mount=/proc/{self.namespace.process_id}/ns/mnt", "--"]

    def _end_processes(self) -> None:
        """Kill the processes that name the daemon's own folder (containerd, shims, proxies), and their children (containers)."""
        until_s = time.monotonic() + _ENDS_S
        while (found := processes_of(f"{self.folder}/exec/")) and time.monotonic() < until_s:
            for process_id in found:
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
            time.sleep(0.1)


@contextmanager
def running_daemon(
    home: RealHome,
    *,
    name: str,
    bridge: bool,
    hosts: Mapping[str, str] | None = None,
    runtime: Path | None = None,
    arguments: Sequence[str] = (),
) -> Generator[DockerDaemon]:
    """Start a daemon, and end it with its containers and all data at the end. Skips the test if this machine cannot run one.

    `bridge`: containers and builds get a network of their own, without a way out of the machine. `hosts`: names and the addresses that the
    daemon resolves them to. `runtime`: a program that replaces runc. `arguments`: further options of dockerd.
    """
    need = Need(what="Docker (Debian packages)", where="the system", disk_gib=0.4, takes_s=60)
    if shutil.which("dockerd") is None:  # a machine with Docker of another source keeps it
        debian_packages(home, need, PACKAGES)
    if os.geteuid() != 0:
        pytest.skip("only root can start a Docker daemon")
    folder = home.folder / "daemons" / name
    if len(str(folder / "exec/containerd/containerd.sock.ttrpc")) > _SOCKET_LIMIT:
        pytest.skip(f"the path of a socket in {folder} is too long. Use a checkout whose path is shorter.")
    _prepare(folder)
    home.results.mkdir(parents=True, exist_ok=True)
    log = home.results / f"dockerd-{name}.log"
    options = [*arguments]
    if runtime is not None:
        options += [f"--add-runtime=judge={runtime}", "--default-runtime=judge"]
    with _network(name, wanted=bridge) as network:
        daemon = DockerDaemon(folder=folder, arguments=[*options, f"--bridge={network}"], log=log)
        try:
            if hosts:
                daemon.namespace = _namespace(folder, hosts, log)
            daemon.start()
            yield daemon
        finally:
            daemon.end()


def _prepare(folder: Path) -> None:
    """Empty the daemon's folder. Skips the test if processes of an earlier run still use it."""
    if left := processes_of(f"{folder}/exec/"):
        pytest.skip(f"a daemon of another run uses {folder}: process {min(left)}")
    for mount in _mounts_below(folder):
        run(["umount", "--lazy", str(mount)])
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "client").mkdir(parents=True)
    (folder / "client/config.json").write_text(json.dumps({}), encoding="utf-8")


def _namespace(folder: Path, hosts: Mapping[str, str], log: Path) -> Service:
    """Start the process that holds a mount namespace with its own /etc/hosts. A daemon that is started again enters the same one."""
    names = folder / "hosts"
    added = "".join(f"{address} {name}\n" for name, address in hosts.items())
    names.write_text(Path("/etc/hosts").read_text(encoding="utf-8") + added, encoding="utf-8")
    ready = folder / "namespace"
    script = 'mount --bind "$1" /etc/hosts && : > "$2" && exec sleep infinity'
    holder = Service(["unshare", "--mount", "sh", "-c", script, "sh", str(names), str(ready)], log)
    holder.start(ready.exists, limit_s=10)
    return holder


@contextmanager
def _network(name: str, *, wanted: bool) -> Generator[str]:
    """Make a bridge of the daemon's own, yield its name, and delete it. Docker's default one would be shared. `none`: not wanted."""
    if not wanted:
        yield "none"
        return
    link = f"judge-{name}"[:15]  # IFNAMSIZ of Linux, without its end
    run(["ip", "link", "delete", link])
    try:
        for step in (
            ["ip", "link", "add", link, "type", "bridge"],
            ["ip", "address", "add", f"{_free_subnet()}.1/24", "dev", link],
            ["ip", "link", "set", link, "up"],
        ):
            done = run(step)
            if done.returncode:
                pytest.skip(f"{' '.join(step)}: {done.stderr.strip()}")
        yield link
    finally:
        run(["ip", "link", "delete", link])


def _free_subnet() -> str:
    """Return the first three numbers of a private network that no interface or route of the machine uses."""
    used = run(["ip", "-4", "route"]).stdout + run(["ip", "-4", "address"]).stdout
    return next(subnet for number in range(256) if f"{(subnet := f'10.213.{number}')}." not in used)


def processes_of(text: str) -> set[int]:
    """Return the processes that have a text in their arguments, and all their descendants."""
    parents, found = dict[int, int](), set[int]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it has ended
            status = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if status[0] == "Z":
                continue
            parents[int(entry.name)] = int(status[1])
            if os.fsencode(text) in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    while more := {child for child, parent in parents.items() if parent in found and child not in found}:
        found |= more
    return found


def _mounts_below(folder: Path) -> list[Path]:
    """Return the mounts in a folder, the innermost first."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    mounted = [Path(line.split()[1].replace("\\040", " ")) for line in lines]
    return sorted((path for path in mounted if path.is_relative_to(folder)), reverse=True)
