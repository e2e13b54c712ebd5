"""What the gRPC servicer asks of a provider, in plain values. `gcp` and `docker` implement it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from localcloud.plugins.checking import CheckReply, Failure, Naming
from localcloud.plugins.diffing import Difference
from localcloud.plugins.lifecycle import Created
from localcloud.plugins.values import Properties, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReply:
    """The result of a read: the resource, and the inputs that lead to it."""

    created: Created
    inputs: Properties


class Session(Protocol):
    """A configured provider. Every method raises PluginError with a message for people; none logs or keeps a secret."""

    def cancel(self) -> None:
        """End the waits of this session that are under way, and no others."""
        ...

    def check(self, type_name: str, news: Properties, olds: Mapping[str, Value], naming: Naming) -> CheckReply:
        """Check inputs and fill defaults in."""
        ...

    def diff(self, type_name: str, state: Properties, news: Properties) -> Difference:
        """Compare the state with new inputs."""
        ...

    def preview_create(self, type_name: str, inputs: Properties) -> Properties:
        """Return the state in a preview of a creation, without any effect."""
        ...

    def preview_update(self, type_name: str, state: Properties, news: Properties) -> Properties:
        """Return the state in a preview of an update, without any effect."""
        ...

    async def create(self, type_name: str, inputs: Properties, *, limit_s: float) -> Created:
        """Create a resource."""
        ...

    async def read(self, type_name: str, resource_id: str, inputs: Properties, state: Properties) -> ReadReply | None:
        """Read a resource, or return None if it is gone."""
        ...

    async def update(
        self, type_name: str, resource_id: str, state: Properties, news: Properties, *, limit_s: float
    ) -> Created:
        """Update a resource in place."""
        ...

    async def delete(self, type_name: str, resource_id: str, state: Properties, *, limit_s: float) -> None:
        """Delete a resource."""
        ...

    async def invoke(self, function: str, arguments: Properties) -> Properties:
        """Answer a data source."""
        ...

    def secret_paths(self, type_name: str) -> frozenset[tuple[str | int, ...]]:
        """Return the paths of a type's state that are always secret."""
        ...


class Provider(Protocol):
    """A provider before it is configured."""

    @property
    def name(self) -> str:
        """Return the package, such as `gcp`."""
        ...

    @property
    def version(self) -> str:
        """Return the version of the provider that this one stands in for."""
        ...

    def check_config(self, news: Properties) -> tuple[Failure, ...]:
        """Find what is wrong with a configuration."""
        ...

    def configure(self, configuration: Properties) -> Session:
        """Start a session with a configuration."""
        ...
