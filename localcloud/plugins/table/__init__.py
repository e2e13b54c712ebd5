"""The resource types that the `gcp` stand-in knows.

To add one: write its `ResourceType` in the module of its service (most need no more than a `RestResource` with paths and fields; the names of the
fields are the SDK's, their `api` names Google's), and list it in that module's tuple.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from localcloud.plugins.lifecycle import ResourceType
from localcloud.plugins.table.artifactregistry import ARTIFACTREGISTRY
from localcloud.plugins.table.compute import COMPUTE
from localcloud.plugins.table.members import MEMBERS
from localcloud.plugins.table.monitoring import MONITORING
from localcloud.plugins.table.nat import NAT
from localcloud.plugins.table.projects import PROJECTS
from localcloud.plugins.table.run import RUN
from localcloud.plugins.table.secretmanager import SECRETMANAGER
from localcloud.plugins.table.storage import STORAGE

_ALL: Final = (*PROJECTS, *MEMBERS, *SECRETMANAGER, *STORAGE, *ARTIFACTREGISTRY, *COMPUTE, *NAT, *RUN, *MONITORING)

TABLE: Final[Mapping[str, ResourceType]] = MappingProxyType({each.type_name: each for each in _ALL})
"""Resource types by token, such as `gcp:storage/bucket:Bucket`."""
