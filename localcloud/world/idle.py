"""Runtimes that run nothing, for tests: every revision is ready at once, machines are records only."""

import asyncio
from collections.abc import Mapping

from localcloud.world.runtime import MachineSpec, RevisionFailedError, RevisionSpec


class IdleRevisions:
    """Revisions that are ready at once. An image that ends in `:fails` fails."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    async def start(self, revision: RevisionSpec) -> str:
        """Return a URL where nothing listens."""
        await asyncio.sleep(0)
        containers = revision.template.get("containers")
        if isinstance(containers, list) and any(
            isinstance(item, dict) and str(item.get("image", "")).endswith(":fails") for item in containers
        ):
            raise RevisionFailedError(
                "The user-provided container failed to start and listen on the port defined provided by the PORT=8000 environment variable."
            )
        self.running.add(revision.name)
        return "http://127.0.0.1:9"

    async def stop(self, name: str) -> None:
        """Remove the record."""
        await asyncio.sleep(0)
        self.running.discard(name)


class IdleFronts:
    """Fronts that only record their routes."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.routes: dict[str, str | None] = {}

    async def open(self, service: str, *, port: int | None) -> int:
        """Return a number without listening."""
        await asyncio.sleep(0)
        self.ports[service] = port or 20000 + len(self.ports)
        return self.ports[service]

    def route(self, service: str, instance_url: str | None) -> None:
        """Record the route."""
        self.routes[service] = instance_url

    async def close(self, service: str) -> None:
        """Remove the front."""
        await asyncio.sleep(0)
        self.ports.pop(service, None)
        self.routes.pop(service, None)


class IdleMachines:
    """Machines that only record their metadata."""

    def __init__(self) -> None:
        self.machines: dict[str, MachineSpec] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self.attributes: dict[str, dict[str, dict[str, str]]] = {}

    async def boot(self, machine: MachineSpec) -> None:
        """Record the machine."""
        await asyncio.sleep(0)
        self.machines[machine.name] = machine
        self.metadata[machine.name] = dict(machine.metadata)

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Record the metadata."""
        self.metadata[name] = dict(metadata)

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """Return what a test has stored in `attributes`."""
        return self.attributes.get(name, {})

    def address(self, name: str, port: int) -> tuple[str, int] | None:  # noqa: ARG002 - the protocol's signature
        """Return None: nothing listens."""
        return None

    async def stop(self, name: str) -> None:
        """Remove the record."""
        await asyncio.sleep(0)
        self.machines.pop(name, None)
        self.metadata.pop(name, None)
