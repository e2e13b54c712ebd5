"""The operations of a resource type, with their inputs and results."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

from localcloud.plugins.diffing import Details
from localcloud.plugins.facts import Overlay, Recorded
from localcloud.plugins.rest import PluginError, Rest
from localcloud.plugins.schema import PropertySpecs, ResourceScope
from localcloud.plugins.values import Properties, Value, text_of

ATTRIBUTION: Final[Mapping[str, str]] = {"goog-pulumi-provisioned": "true"}
"""The label that the real provider adds to everything that it creates, unless the configuration disables it."""

DEFAULT_LIMIT_S: Final = 20 * 60.0
"""The real provider's time limit for most operations, in simulated seconds (google_cloud_run_v2_service: resource_cloud_run_v2_service.go, DefaultTimeout)."""


class Locks:
    """One lock per name, for read-modify-write cycles on objects that several resources share (a policy, a router)."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def of(self, name: str) -> asyncio.Lock:
        """Return the lock of a name."""
        return self._locks[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """The provider's configuration. Texts are empty if not set."""

    project: str = ""
    region: str = ""
    default_labels: Mapping[str, str] = field(default_factory=dict[str, str])
    attribution: bool = True

    @property
    def provider_labels(self) -> dict[str, str]:
        """Return the labels for every resource that can have labels."""
        return {**self.default_labels, **(ATTRIBUTION if self.attribution else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext:
    """Context of an operation: the REST client, the provider's settings, locks and a time limit."""

    rest: Rest = field(compare=False)
    settings: PluginSettings
    locks: Locks
    limit_s: float = DEFAULT_LIMIT_S

    def limited(self, limit_s: float) -> "OperationContext":
        """Return the context with the program's time limit (`customTimeouts`), if it has one."""
        return replace(self, limit_s=limit_s) if limit_s > 0 else self

    def scope(self, values: Mapping[str, Value]) -> ResourceScope:
        """Return the project and region of a resource: its own, otherwise the provider's."""
        project = text_of(values, "project") or self.settings.project
        region = text_of(values, "region") or text_of(values, "location") or self.settings.region
        return ResourceScope(project=project, region=region)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedResource:
    """An existing resource: its id and its state."""

    id: str
    state: Properties


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReply:
    """The result of a read: the resource, and the inputs that produce it."""

    created: CreatedResource
    inputs: Properties


class PartlyDoneError(PluginError):
    """The resource exists, but its creation or update failed. Id and state must not be lost."""

    def __init__(self, created: CreatedResource, reason: str) -> None:
        super().__init__(reason)
        self.created = created


async def settled(resource_id: str, inputs: Properties, rest: Awaitable[CreatedResource]) -> CreatedResource:
    """Finish the creation of a resource that now exists. Raises PartlyDoneError with its id if anything fails."""
    try:
        return await rest
    except PartlyDoneError:
        raise
    except PluginError as error:
        raise PartlyDoneError(CreatedResource(id=resource_id, state=inputs), str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRequest:
    """The old state (`state`) and the new inputs (`inputs`) of an update."""

    id: str
    state: Properties
    inputs: Properties
    changed: frozenset[str]


class Lifecycle(Protocol):
    """The operations of one resource type."""

    async def create(self, context: OperationContext, inputs: Properties) -> CreatedResource:
        """Create and return the resource. Raises PluginError, or PartlyDoneError if it exists partially."""
        ...

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> CreatedResource | None:
        """Return the current resource, or None if it does not exist. `given` is the state, or empty for an import."""
        ...

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> CreatedResource:
        """Send the changes and return the resource. Raises the errors of `create`."""
        ...

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Delete the resource. It is not an error if it is already gone."""
        ...


Foresee: TypeAlias = Callable[[Details, Mapping[str, Value], Mapping[str, Value]], Details]
"""Adds consequences of other changes to a diff: computed outputs that will change, replacements that depend on values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeOverlay:
    """Requests of a type, and facts about its properties from recordings. The schema provides the rest.

    `lifecycle` is called with the resulting `fields`. `message` is the discovery document and message of a request body, such as
    `storage.v1#Bucket`; empty if the lifecycle writes its requests by hand.
    """

    lifecycle: Callable[..., Lifecycle]
    message: str = ""
    properties: Overlay = field(default_factory=dict[str, Recorded])
    foresee: Foresee | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceType:
    """One resource type, ready to use."""

    type_name: str
    fields: PropertySpecs
    lifecycle: Lifecycle
    foresee: Foresee | None = None
