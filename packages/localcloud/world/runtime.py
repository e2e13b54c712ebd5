"""Interfaces between the service models and the runtimes of revisions, fronts and virtual machines.

`localcloud.services` uses only these protocols. `localcloud.running` implements them with processes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, Protocol, TypeAlias

DeviceAccess: TypeAlias = Literal["open", "denied", "absent"]
"""`open`: every container with the accelerator's devices can open them. `denied`: only a privileged one can."""
Json: TypeAlias = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class RevisionFailedError(Exception):
    """A revision did not become ready. The message is Cloud Run's Ready condition."""


class MachineFailedError(Exception):
    """A virtual machine could not be started. The message states the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """Remote services that an instance or machine reaches through its network."""

    internet: bool = True
    """True for the hub, Docker Hub and package archives."""
    google: bool = True
    """True for Google's APIs and Artifact Registry."""


OPEN: Final = Egress()
NOWHERE: Final = "http://127.0.0.1:9"
"""The hub's address without a way to the internet: the discard port, on which nothing listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionSpec:
    """One Cloud Run revision: `name` is its full resource name, `template` the RevisionTemplate of run.v2."""

    name: str
    service: str
    template: Mapping[str, Json]
    egress: Egress = OPEN


class RevisionRuntime(Protocol):
    """Runs the instances of revisions."""

    async def start(self, revision: RevisionSpec) -> str:
        """Start an instance, run its startup probe on the accelerated clock, and return the instance's URL.

        Raises RevisionFailedError if the container exits, the probe fails, or the template cannot run. Then no process is left running.
        """
        ...

    async def stop(self, name: str, *, url: str | None = None) -> None:
        """Stop a revision's instance; with `url`, only if it is still that one. An unknown name is ignored."""
        ...


class AccessDecision(Enum):
    """A front's decision about a caller, with the HTTP status."""

    ALLOWED = 200
    UNAUTHENTICATED = 401
    FORBIDDEN = 403
    NOT_FOUND = 404
    """The service does not accept requests from the caller's location."""


Authorize: TypeAlias = Callable[[str, str | None], AccessDecision]
"""Decides for a service's full name and a bearer token (or None). A front passes X-Serverless-Authorization if present, otherwise Authorization."""


class FrontRuntime(Protocol):
    """Stable URLs of services and of their traffic tags: one loopback port each, IAM checked before a request reaches an instance."""

    async def open(self, service: str, *, port: int | None, tag: str = "") -> int:
        """Open the front of a service or its tag, on the given port if possible, and return its port. It answers 503 until a route is set."""
        ...

    def route(self, service: str, shares: Mapping[str, int], *, tag: str = "") -> None:
        """Divide the traffic between instances by URL and percentage. An empty mapping means no instance."""
        ...

    async def drained(self, instance_url: str) -> None:
        """Wait until an instance without new requests has finished its running ones."""
        ...

    async def close(self, service: str, *, tag: str = "") -> None:
        """Close the front. An unknown name is ignored."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """One virtual machine: `name` is the full resource name of the TPU node, or of the instance."""

    name: str
    project: str
    zone: str
    accelerator_type: str
    metadata: Mapping[str, str]
    service_account: str
    machine_type: str = ""
    """Name for the metadata server. Empty: a TPU node's name."""
    has_docker: bool = True
    """True if the boot image includes docker, as Cloud TPU's runtime versions do."""
    egress: Egress = OPEN
    devices: DeviceAccess = "open"
    """Access of an unprivileged container to the accelerator's devices. `absent`: the image has no driver for them, so /dev has none."""


class MachineRuntime(Protocol):
    """Runs virtual machines. Each runs its startup script and has its own metadata server."""

    async def boot(self, machine: MachineSpec) -> None:
        """Boot the machine. Returns when the startup script has started."""
        ...

    async def reboot(self, name: str) -> None:
        """Reboot the machine: processes and memory are lost, the disk is kept. Raises MachineFailedError if it does not run."""
        ...

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Replace the machine's metadata and wake the waiting GETs."""
        ...

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """Return namespace -> key -> value. Empty for unknown machines."""
        ...

    def address(self, name: str, port: int) -> tuple[str, int] | None:
        """Return host and port for a tunnel to this port of the machine, or None if nothing listens there."""
        ...

    async def stop(self, name: str) -> None:
        """Power off and remove the machine. An unknown name is ignored."""
        ...
