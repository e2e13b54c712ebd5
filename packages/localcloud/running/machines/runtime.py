"""Machines: each has a folder, a loopback address, a metadata server and an init process."""

import asyncio
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcloud.running import interpreter
from localcloud.running.machines.metadata import IssueAccessToken, IssueIdToken, MachineData, MetadataServer
from localcloud.running.shims import (
    COMMANDS_WITHOUT_DOCKER,
    DOCKER_PROGRAM,
    MACHINE_COMMANDS,
    STORAGE_ADDRESS,
    install,
    install_program,
)
from localcloud.running.shims.docker_devices import device_files
from localcloud.running.shims.machine import FOLDER_VARIABLE, OWN_FOLDERS, documents, write_json
from localcloud.world.runtime import MachineFailedError, MachineSpec
from localcloud.world.timeline import Clock

_START_LIMIT_S: Final = 30.0
_STOP_LIMIT_S: Final = 15.0
_CONNECT_LIMIT_S: Final = 0.5
_ADDRESS_TRIES: Final = 50
_BOOT_S: Final = 41.5
"""Simulated seconds from power-on to the startup script: the mean of 20 boots of a Google VM (C. McAnlis, "Understanding and profiling GCE
cold-boot time", 2017)."""
_NULL_DEVICE: Final = os.makedev(1, 3)
_LOST_EXIT_CODE: Final = 255
"""Docker's exit code of a container that ran when the machine shut down."""


@dataclass(slots=True, kw_only=True)
class _RunningMachine:
    data: MachineData
    server: MetadataServer
    address: str
    folder: Path
    init_process: asyncio.subprocess.Process


class SimulatedMachines:
    """Implementation of `localcloud.world.runtime.MachineRuntime`.

    When a machine stops, its console and its containers' logs move to `state`/logs/machines. All its other files are removed.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        state: Path,
        base_url: str,
        access_token: IssueAccessToken,
        id_token: IssueIdToken,
        of_process: Callable[[str], str] = str,
        faults: Callable[[], str] = str,
    ) -> None:
        """`of_process`: as of `MachineData`."""
        self._clock = clock
        self._state = state.resolve()
        self._base_url = base_url.rstrip("/")
        self._access_token = access_token
        self._id_token = id_token
        self._of_process = of_process
        self._faults = faults
        self._machines: dict[str, _RunningMachine] = {}
        self._servers: dict[str, tuple[MachineData, MetadataServer]] = {}
        """Also of machines that boot, because Google reports them as ready, so their metadata can already change."""

    async def boot(self, machine: MachineSpec) -> None:
        """Boot a machine. A running machine with that name is stopped first. Raises MachineFailedError."""
        await self.stop(machine.name)
        folder = self._folder(_file_name(machine.name))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if machine.devices != "absent":
            _make_devices(folder / "dev", machine.accelerator_type)
        (folder / "cgroup").mkdir()
        (folder / "cgroup" / "cgroup.controllers").touch()
        address = _free_address()
        data = MachineData(spec=machine, metadata=dict(machine.metadata), of_process=self._of_process)
        server = MetadataServer(data, access_token=self._access_token, id_token=self._id_token)
        self._servers[machine.name] = data, server
        try:
            await self._clock.sleep(_BOOT_S)
            await server.start(address)
            init_process = await self._start_init_process(data, folder, address, server.address)
        except BaseException:
            del self._servers[machine.name]
            await server.stop()
            raise
        self._machines[machine.name] = _RunningMachine(
            data=data, server=server, address=address, folder=folder, init_process=init_process
        )

    async def reboot(self, name: str) -> None:
        """Reboot a machine: processes and /dev/shm are lost, the disk is kept. Raises MachineFailedError if it does not run."""
        machine = self._machines.get(name)
        if machine is None:
            raise MachineFailedError(f"Machine {name} is not running.")
        await self._power_off(machine)
        _forget_memory(machine.folder)
        await self._clock.sleep(_BOOT_S)
        machine.init_process = await self._start_init_process(
            machine.data, machine.folder, machine.address, machine.server.address
        )

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Replace a machine's metadata and wake the waiting GETs. An unknown name is ignored."""
        if name in self._servers:
            data, server = self._servers[name]
            data.metadata = dict(metadata)
            server.changed()

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """Return the machine's guest attributes."""
        machine = self._machines.get(name)
        return {} if machine is None else machine.data.guest_attributes

    def address(self, name: str, port: int) -> tuple[str, int] | None:
        """Return host and port for a port of the machine, or None if nothing listens there now."""
        machine = self._machines.get(name)
        if machine is None:
            return None
        with suppress(OSError), socket.create_connection((machine.address, port), _CONNECT_LIMIT_S):
            return machine.address, port
        return None

    async def stop(self, name: str) -> None:
        """Power off. When this returns, no process of the machine is left."""
        machine = self._machines.pop(name, None)
        if machine is None:
            return
        del self._servers[name]
        await self._power_off(machine)
        await machine.server.stop()
        self._keep_logs(machine.folder)
        shutil.rmtree(machine.folder, ignore_errors=True)

    async def _power_off(self, machine: _RunningMachine) -> None:
        """Stop all processes of the machine."""
        if machine.init_process.stdin is not None:
            machine.init_process.stdin.close()
        try:
            await asyncio.wait_for(machine.init_process.wait(), _STOP_LIMIT_S)
        except TimeoutError:
            machine.init_process.kill()
            await machine.init_process.wait()

    async def _start_init_process(
        self, data: MachineData, folder: Path, address: str, metadata_server: str
    ) -> asyncio.subprocess.Process:
        machine = data.spec
        given = {
            "startupScript": data.metadata.get("startup-script", ""),
            "environment": self._environment(machine, folder, address, metadata_server),
            "machine": {
                "name": machine.name,
                "address": address,
                "accelerator": machine.accelerator_type,
                "internet": machine.egress.internet,
                "google": machine.egress.google,
                "denies_devices": machine.devices == "denied",
                "clock_speed": self._clock.speed,
                "base_url": self._base_url,
            },
        }
        init_process = await asyncio.create_subprocess_exec(
            *interpreter.command("localcloud.running.shims.init_process", str(folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=interpreter.ENVIRONMENT,
            start_new_session=True,
        )
        assert init_process.stdin is not None  # noqa: S101 - pipes were requested
        assert init_process.stdout is not None  # noqa: S101
        answer = ""
        with suppress(TimeoutError, ConnectionError):
            init_process.stdin.write(json.dumps(given).encode() + b"\n")
            async with asyncio.timeout(_START_LIMIT_S):
                answer = (await init_process.stdout.readline()).decode().strip()
        if answer != "started":
            with suppress(ProcessLookupError):
                init_process.kill()
            await init_process.wait()
            raise MachineFailedError(
                f"The machine {machine.name} did not boot: {answer or 'its init process did not start'}."
            )
        return init_process

    def _environment(self, machine: MachineSpec, folder: Path, address: str, metadata_server: str) -> dict[str, str]:
        """Return the startup script's environment: nothing inherited, and the machine's commands first on PATH."""
        variables = {
            FOLDER_VARIABLE: str(folder),
            **interpreter.simulator_variables(),
            **interpreter.planted(self._faults()),
        }
        commands = install(folder / "bin", MACHINE_COMMANDS, variables)
        if not machine.has_docker:
            install(folder / "bin", COMMANDS_WITHOUT_DOCKER, variables)
        elif program := os.environ.get(DOCKER_PROGRAM):
            install_program(folder / "bin" / "docker", program, variables)
        # The script uses the base interpreter, so it cannot import this project's packages.
        (commands / "python3").unlink(missing_ok=True)
        (commands / "python3").symlink_to(Path(sys.executable).resolve())
        return {
            "PATH": f"{commands}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "GCE_METADATA_HOST": metadata_server,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": f"{self._base_url}/secretmanager/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{os.environ.get(STORAGE_ADDRESS) or self._base_url}/storage/storage/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": f"{self._base_url}/logging/",
            "HF_ENDPOINT": f"{self._base_url}/hub",
            "GEMMA_SERVING_HUB_CACHE": str(folder / OWN_FOLDERS["/mnt"] / "huggingface"),
            "GEMMA_SERVING_LOOPBACK": address,
            "GEMMA_SERVING_DEVICES": str(folder / "dev"),
            "GEMMA_SERVING_CGROUPS": str(folder / "cgroup"),
            "GEMMA_SERVING_STATE": str(folder / "agent-state"),
        }

    def _keep_logs(self, folder: Path) -> None:
        kept = self._state / "logs" / "machines" / folder.name
        logs = [
            *folder.glob("*.log"),
            *folder.glob("containers/*.log"),
            *folder.glob("units/*.log"),
            *folder.glob("old-logs/*.log"),
        ]
        kept.mkdir(parents=True, exist_ok=True)
        for log in logs:
            with suppress(OSError):
                shutil.copyfile(log, kept / log.name)

    def _folder(self, name: str) -> Path:
        return self._state / "machines" / name


def _forget_memory(folder: Path) -> None:
    """Remove a machine's in-memory state: /dev/shm, its units, and the running state of its containers."""
    shutil.rmtree(folder / "dev-shm", ignore_errors=True)
    for unit in folder.glob("units/*.json"):
        unit.unlink()
    for name, document in documents(folder / "containers"):
        if document.get("running"):
            ended = {**document, "running": False, "exitCode": _LOST_EXIT_CODE}
            write_json(folder / "containers" / f"{name}.json", ended)


def _make_devices(folder: Path, accelerator: str) -> None:
    """Create a null device in place of each device of the accelerator, or a file where only root can create devices."""
    for name in device_files(accelerator):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(folder / name, stat.S_IFCHR | 0o600, _NULL_DEVICE)
        except PermissionError:
            (folder / name).touch()


def _file_name(name: str) -> str:
    parts = re.sub(r"[^\w./-]", "-", name).split("/")
    return "-".join(parts[1::2]) or "machine"


def _free_address() -> str:
    """Return an unused loopback address, so the machine's ports do not clash with others. Systems with one address get 127.0.0.1."""
    for _ in range(_ADDRESS_TRIES):
        address = f"127.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"
        with socket.socket() as probe:
            try:
                probe.bind((address, 8000))
            except OSError as error:
                if not sys.platform.startswith("linux"):
                    break
                del error
                continue
            return address
    return "127.0.0.1"
