"""The resource types that the `gcp` stand-in supports: every type of `data/schema.json`.

Facts in the schema are not repeated here. A type that can be created has a `TypeOverlay` in the module of its service: how its requests are made, and
facts about single properties from recordings of the real provider. To add one, write its overlay and list it in `_OVERLAYS`.
"""

from collections.abc import Mapping
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Final

from localcloud.plugins import facts
from localcloud.plugins.lifecycle import Lifecycle, ResourceType, TypeOverlay
from localcloud.plugins.overlay.artifactregistry import ARTIFACTREGISTRY
from localcloud.plugins.overlay.compute import COMPUTE
from localcloud.plugins.overlay.members import MEMBERS
from localcloud.plugins.overlay.monitoring import MONITORING
from localcloud.plugins.overlay.nat import NAT
from localcloud.plugins.overlay.objects import OBJECTS
from localcloud.plugins.overlay.projects import PROJECTS
from localcloud.plugins.overlay.run import RUN
from localcloud.plugins.overlay.secretmanager import SECRETMANAGER
from localcloud.plugins.overlay.storage import STORAGE
from localcloud.plugins.rest import PluginError

_ALL: Final = (ARTIFACTREGISTRY, COMPUTE, MEMBERS, MONITORING, NAT, OBJECTS, PROJECTS, RUN, SECRETMANAGER, STORAGE)
OVERLAYS: Final[Mapping[str, TypeOverlay]] = MappingProxyType(dict(chain.from_iterable(each.items() for each in _ALL)))
"""The types that can be created, by token such as `gcp:storage/bucket:Bucket`."""

_OTHERS: Final = (
    "`python -m localcloud types` lists the types that it creates. For another type whose API the local cloud serves, "
    "pass --providers real to use the installed plugin"
)


@cache
def resource_type(type_name: str) -> ResourceType:
    """Return a type's entry. Raises PluginError for a type that the schema does not have."""
    if type_name not in facts.types():
        raise PluginError(f"the local gcp stand-in does not support the resource type {type_name}. {_OTHERS}")
    overlay = OVERLAYS.get(type_name)
    if overlay is None:
        return ResourceType(type_name=type_name, fields=facts.specifications(type_name, "", {}))
    fields = facts.specifications(type_name, overlay.message, overlay.properties)
    return ResourceType(
        type_name=type_name, fields=fields, lifecycle=overlay.lifecycle(fields=fields), foresee=overlay.foresee
    )


def lifecycle_of(type_name: str) -> Lifecycle:
    """Return the operations of a type. Raises PluginError for a type that cannot be created here."""
    found = resource_type(type_name).lifecycle
    if found is None:
        raise PluginError(f"the local gcp stand-in checks and compares {type_name}, but cannot create it. {_OTHERS}")
    return found
