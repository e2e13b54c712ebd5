"""What the gRPC servicer asks of a provider, in plain values. `gcp` and `docker` implement it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from localcloud.plugins.checking import CheckedInputs, Failure, Naming
from localcloud.plugins.diffing import Difference
from localcloud.plugins.lifecycle import Created
from localcloud.plugins.values import Properties, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """What a read found: the resource, and the inputs that lead to it."""

    created: Created
    inputs: Properties


class Session(Protocol):
    """A configured provider. Every method raises PluginError with a message for people; none logs or keeps a secret."""

    def cancel(self) -> None:
        """End the waits of this session that are under way, and no others."""
        ...

    def check(self, type_name: str, news: Properties, olds: Mapping[str, Value], naming: Naming) -> CheckedInputs:
        """Check inputs and fill defaults in."""
        ...

    def diff(self, type_name: str, state: Properties, news: Properties) -> Difference:
        """Compare the state with new inputs."""
        ...

    def preview_create(self, type_name: str, inputs: Properties) -> Properties:
        """Foretell the state of a resource that does not exist yet, without any effect."""
        ...

    def preview_update(self, type_name: str, state: Properties, news: Properties) -> Properties:
        """Foretell the state after an update, without any effect."""
        ...

    async def create(self, type_name: str, inputs: Properties, *, limit_s: float) -> Created:
        """Create."""
        ...

    async def read(self, type_name: str, resource_id: str, inputs: Properties, state: Properties) -> ReadResult | None:
        """Read; None where there is nothing."""
        ...

    async def update(
        self, type_name: str, resource_id: str, state: Properties, news: Properties, *, limit_s: float
    ) -> Created:
        """Update in place."""
        ...

    async def delete(self, type_name: str, resource_id: str, state: Properties, *, limit_s: float) -> None:
        """Delete."""
        ...

    async def invoke(self, function: str, arguments: Properties) -> Properties:
        """Answer a data source."""
        ...

    def secret_paths(self, type_name: str) -> frozenset[tuple[str | int, ...]]:
        """The places of a type's state that are secret whatever the program says."""
        ...


class Provider(Protocol):
    """A provider before it is configured."""

    @property
    def name(self) -> str:
        """The package, such as `gcp`."""
        ...

    @property
    def version(self) -> str:
        """The version of the provider that this one stands in for."""
        ...

    def check_config(self, news: Properties) -> tuple[Failure, ...]:
        """Find what is wrong with a configuration."""
        ...

    def configure(self, configuration: Properties) -> Session:
        """Start a session with a configuration."""
        ...
