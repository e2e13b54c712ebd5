"""The resource types that the `gcp` stand-in supports: every type of `data/schema.json`.

Facts in the schema are not repeated here. Each type has a `TypeOverlay` in the module of its service: how its requests are made, and facts about
single properties from recordings of the real provider. To add one, write its overlay and list it in `_ALL`.
"""

from collections.abc import Mapping
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Final

from localcloud.plugins import facts
from localcloud.plugins.lifecycle import ResourceType, TypeOverlay
from localcloud.plugins.overlay.compute import COMPUTE
from localcloud.plugins.overlay.members import MEMBERS
from localcloud.plugins.overlay.monitoring import MONITORING
from localcloud.plugins.overlay.projects import PROJECTS
from localcloud.plugins.overlay.run import RUN
from localcloud.plugins.overlay.secretmanager import SECRETMANAGER
from localcloud.plugins.overlay.storage import STORAGE
from localcloud.plugins.rest import PluginError

_ALL: Final = (COMPUTE, MEMBERS, MONITORING, PROJECTS, RUN, SECRETMANAGER, STORAGE)
OVERLAYS: Final[Mapping[str, TypeOverlay]] = MappingProxyType(dict(chain.from_iterable(each.items() for each in _ALL)))
"""The types, by token such as `gcp:storage/bucket:Bucket`."""

_OTHERS: Final = (
    "`python -m localcloud types` lists the types that it creates. For another type whose API the local cloud serves, "
    "pass --providers real to use the installed plugin"
)


@cache
def resource_type(type_name: str) -> ResourceType:
    """Return a type's entry. Raises PluginError for an unsupported type."""
    overlay = OVERLAYS.get(type_name)
    if overlay is None:
        raise PluginError(f"the local gcp stand-in does not support the resource type {type_name}. {_OTHERS}")
    fields = facts.specifications(type_name, overlay.message, overlay.properties)
    return ResourceType(
        type_name=type_name, fields=fields, lifecycle=overlay.lifecycle(fields=fields), foresee=overlay.foresee
    )
