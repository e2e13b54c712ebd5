"""Settings of a stack: one frozen model for both targets with a server, another for a gateway, one file per block.

Keys in the file are camelCase and quantities have a unit (`maxRunDuration: 4h`, `memory: 32Gi`). Here they are numbers with
the unit in the name (`max_run_duration_s`, `memory_mib`). `stacks.loading` converts each error into one sentence.
"""

from stacks.settings.cloud_run import CloudRunSettings, MountSettings, ProbeSettings
from stacks.settings.gateway import GatewayStack
from stacks.settings.image import DockerHubSettings
from stacks.settings.stack import NAMESPACES, NOT_IN_FILE, Settings, SmokeSettings
from stacks.settings.tpu import TpuSettings
from stacks.settings.watching import AlertSettings

__all__ = [
    "NAMESPACES",
    "NOT_IN_FILE",
    "AlertSettings",
    "CloudRunSettings",
    "DockerHubSettings",
    "GatewayStack",
    "MountSettings",
    "ProbeSettings",
    "Settings",
    "SmokeSettings",
    "TpuSettings",
]
