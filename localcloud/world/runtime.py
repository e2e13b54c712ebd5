"""What the service models ask of the things that really run: revisions and their front doors, virtual machines.

The REST side (`localcloud.services`) knows these protocols only; `localcloud.running.machines`, `localcloud.running.revisions` and `localcloud.running.fronts`
implement them with simulated vLLM servers, and tests implement them with nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

Json: TypeAlias = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class RevisionFailedError(Exception):
    """A revision did not become ready; the message is what Cloud Run would say in the Ready condition."""


class MachineFailedError(Exception):
    """A virtual machine could not be started; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionSpec:
    """One Cloud Run revision: `name` is its full resource name, `template` the RevisionTemplate as run.v2 has it."""

    name: str
    service: str
    template: Mapping[str, Json]


class RevisionRuntime(Protocol):
    """Runs the instances of revisions."""

    async def start(self, revision: RevisionSpec) -> str:
        """Start an instance, run its startup probe on the accelerated clock, return the instance's URL once it passes.

        Raises RevisionFailedError when the container exits, the probe's budget is spent, or the template cannot run. Nothing is left running then.
        """
        ...

    async def stop(self, name: str) -> None:
        """Stop a revision's instance; unknown names are fine."""
        ...


class AccessDecision(Enum):
    """What a front door says to a caller."""

    ALLOWED = 200
    UNAUTHENTICATED = 401
    FORBIDDEN = 403


Authorize: TypeAlias = Callable[[str, str | None], AccessDecision]
"""Given a service's full name and the bearer token (or None), decide. The front passes X-Serverless-Authorization first, then Authorization."""


class FrontRuntime(Protocol):
    """Stable URLs of services: one loopback port each, IAM checked before a request reaches an instance."""

    async def open(self, service: str, *, port: int | None) -> int:
        """Open the front of a service (on the given port if possible) and return its port. 503 until a route is set."""
        ...

    def route(self, service: str, instance_url: str | None) -> None:
        """Send the service's traffic to an instance, or nowhere."""
        ...

    async def close(self, service: str) -> None:
        """Close the front; unknown names are fine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """One virtual machine: `name` is the TPU node's full resource name."""

    name: str
    project: str
    zone: str
    accelerator_type: str
    metadata: Mapping[str, str]
    service_account: str


class MachineRuntime(Protocol):
    """Runs virtual machines: executes their start-up script with a metadata server of their own."""

    async def boot(self, machine: MachineSpec) -> None:
        """Boot; returns as soon as the start-up script has been started."""
        ...

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Replace the machine's metadata; waiting GETs wake up."""
        ...

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """Return namespace -> key -> value; empty for unknown machines."""
        ...

    def address(self, name: str, port: int) -> tuple[str, int] | None:
        """Return host and port for a tunnel to this port of the machine; None if nothing listens there."""
        ...

    async def stop(self, name: str) -> None:
        """Power off and forget; unknown names are fine."""
        ...
