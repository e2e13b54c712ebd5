"""The resource types that the `gcp` stand-in knows.

To add one: write its `ResourceType` in the module of its service (most need no more than a `RestResource` with paths and fields; the names of the
fields are the SDK's, their `api` names Google's), and list it in that module's tuple.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from localcloud.providers.lifecycle import ResourceType
from localcloud.providers.table.artifactregistry import ARTIFACTREGISTRY
from localcloud.providers.table.compute import COMPUTE
from localcloud.providers.table.members import MEMBERS
from localcloud.providers.table.monitoring import MONITORING
from localcloud.providers.table.nat import NAT
from localcloud.providers.table.projects import PROJECTS
from localcloud.providers.table.run import RUN
from localcloud.providers.table.secretmanager import SECRETMANAGER
from localcloud.providers.table.storage import STORAGE

_ALL: Final = (*PROJECTS, *MEMBERS, *SECRETMANAGER, *STORAGE, *ARTIFACTREGISTRY, *COMPUTE, *NAT, *RUN, *MONITORING)

TABLE: Final[Mapping[str, ResourceType]] = MappingProxyType({each.type_name: each for each in _ALL})
"""Resource types by token, such as `gcp:storage/bucket:Bucket`."""
