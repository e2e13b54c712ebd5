"""A local cloud in a thread, with runtimes that run nothing: every revision is ready immediately, and machines are only records."""

import asyncio
import contextlib
import functools
import json
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from localcloud.server.app import DEFAULT_PROJECT, DEFAULT_SPEED, Options, RuntimeFactory, open_cloud
from localcloud.world import oauth, run_messages
from localcloud.world.cloud import Cloud, Runtimes
from localcloud.world.runtime import (
    MachineFailedError,
    MachineSpec,
    RevisionFailedError,
    RevisionSpec,
)
from localcloud.world.scenario import Scenario

_START_LIMIT_S = 60.0


@functools.cache
def _operators_key() -> str:
    """Return a private key for the operator: one for each process, because making one takes longer than all else of a start."""
    return oauth.new_private_key()


class IdleRevisions:
    """Revisions that are ready at once. An image that ends in `:fails` fails."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.specs: list[RevisionSpec] = []
        """Of each start, also of a failed one."""

    async def start(self, revision: RevisionSpec) -> str:
        await asyncio.sleep(0)
        self.specs.append(revision)
        containers = revision.template.get("containers")
        if isinstance(containers, list) and any(
            isinstance(item, dict) and str(item.get("image", "")).endswith(":fails") for item in containers
        ):
            raise RevisionFailedError(run_messages.not_started(revision.template))
        self.running.add(revision.name)
        return f"http://{revision.name.rpartition('/')[2]}.invalid"

    async def stop(self, name: str, *, url: str | None = None) -> None:
        del url
        await asyncio.sleep(0)
        self.running.discard(name)


class FailingRevisions(IdleRevisions):
    """Revisions that fail to start, when `fail` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.fail = asyncio.Event(), asyncio.Event()

    async def start(self, revision: RevisionSpec) -> str:
        self.begun.set()
        await self.fail.wait()
        raise RevisionFailedError(run_messages.not_started(revision.template))


class IdleFronts:
    """Fronts that only record their routes."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        """By the service's name, or by SERVICE#TAG."""
        self.routes: dict[str, dict[str, int]] = {}

    async def open(self, service: str, *, port: int | None, tag: str = "") -> int:
        await asyncio.sleep(0)
        name = f"{service}#{tag}" if tag else service
        self.ports[name] = port or 20000 + len(self.ports)
        return self.ports[name]

    def route(self, service: str, shares: Mapping[str, int], *, tag: str = "") -> None:
        self.routes[f"{service}#{tag}" if tag else service] = dict(shares)

    async def drained(self, instance_url: str) -> None:
        del instance_url
        await asyncio.sleep(0)

    async def close(self, service: str, *, tag: str = "") -> None:
        await asyncio.sleep(0)
        name = f"{service}#{tag}" if tag else service
        self.ports.pop(name, None)
        self.routes.pop(name, None)


class IdleMachines:
    """Machines that only record their metadata."""

    def __init__(self) -> None:
        self.machines: dict[str, MachineSpec] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self.attributes: dict[str, dict[str, dict[str, str]]] = {}
        self.listening: dict[int, tuple[str, int]] = {}
        """Where a test listens, by the machines' port."""

    async def boot(self, machine: MachineSpec) -> None:
        await asyncio.sleep(0)
        self.machines[machine.name] = machine
        self.metadata[machine.name] = dict(machine.metadata)

    async def reboot(self, name: str) -> None:
        await asyncio.sleep(0)

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        self.metadata[name] = dict(metadata)

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """Return the guest attributes that a test stored in `attributes`."""
        return self.attributes.get(name, {})

    def address(self, name: str, port: int) -> tuple[str, int] | None:
        """Return the address that a test stored in `listening`."""
        return self.listening.get(port)

    async def stop(self, name: str) -> None:
        await asyncio.sleep(0)
        self.machines.pop(name, None)
        self.metadata.pop(name, None)


class FailingMachines(IdleMachines):
    """Machines that fail to boot, when `fail` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.fail, self.stopped = asyncio.Event(), asyncio.Event(), threading.Event()

    async def boot(self, machine: MachineSpec) -> None:
        self.begun.set()
        await self.fail.wait()
        raise MachineFailedError(f"{machine.name} did not boot")

    async def stop(self, name: str) -> None:
        """Note the end of the boot: a machine is stopped after it."""
        self.stopped.set()
        await super().stop(name)


def idle_runtimes(_cloud: Cloud) -> Runtimes:
    """Return runtimes that run nothing: revisions are ready immediately, and machines are only records."""
    return Runtimes(revisions=IdleRevisions(), fronts=IdleFronts(), machines=IdleMachines())


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A cloud in a thread."""

    base_url: str
    state: Path
    credentials: Path
    token: str
    """An access token of the operator."""
    routes: list[tuple[str, str]]
    """Verb and path of the local cloud's own routes."""
    cloud: Cloud
    loop: asyncio.AbstractEventLoop


@contextlib.contextmanager
def start(
    *,
    state: Path | None = None,
    project: str = DEFAULT_PROJECT,
    speed: float = DEFAULT_SPEED,
    scenario: Scenario | None = None,
    runtimes: RuntimeFactory = idle_runtimes,
) -> Generator[Started]:
    """Run a cloud in a thread during the block. Without a state folder, use a temporary one."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="localcloud-"))) if state is None else state
        folder.mkdir(parents=True, exist_ok=True)
        credentials = folder / "credentials.json"
        if not credentials.exists():  # the cloud keeps the key of an existing file
            credentials.touch(mode=0o600)
            credentials.write_text(json.dumps({"private_key": _operators_key()}), encoding="utf-8")
        options = Options(project=project, speed=speed, scenario=scenario or Scenario())
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="localcloud", daemon=True)
        thread.start()
        try:
            opened = asyncio.run_coroutine_threadsafe(open_cloud(folder, options, runtimes), loop).result(
                _START_LIMIT_S
            )
            token = opened.cloud.tokens.issue_access_token(opened.cloud.operator, lifetime_s=24 * 3600)
            try:
                yield Started(
                    base_url=opened.base_url,
                    state=folder,
                    credentials=opened.credentials,
                    token=token,
                    routes=opened.routes(),
                    cloud=opened.cloud,
                    loop=loop,
                )
            finally:
                asyncio.run_coroutine_threadsafe(opened.close(), loop).result(_START_LIMIT_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_START_LIMIT_S)
            loop.close()
