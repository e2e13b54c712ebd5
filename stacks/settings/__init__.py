"""Settings of a stack: one frozen model for both targets with a server, another for a gateway, one file per block.

Keys in the file are camelCase and quantities have a unit (`maxRunDuration: 4h`, `memory: 32Gi`). Here they are numbers with
the unit in the name (`max_run_duration_s`, `memory_mib`). `stacks.loading` converts each error into one sentence.
"""

from stacks.settings.bucket import BucketSettings
from stacks.settings.cloud_run import (
    CloudRunSettings,
    MountSettings,
    ProbeSettings,
    ReadinessProbeSettings,
    RolloutSettings,
)
from stacks.settings.gateway import BackendSettings, GatewaySettings, GatewayStack
from stacks.settings.image import DockerHubSettings, ImageSettings
from stacks.settings.smoke import SmokeSettings
from stacks.settings.stack import NAMESPACES, NOT_IN_FILE, Settings
from stacks.settings.tpu import ExistingNetworkSettings, TpuSettings
from stacks.settings.watching import AlertSettings, MetricsSettings

__all__ = [
    "NAMESPACES",
    "NOT_IN_FILE",
    "AlertSettings",
    "BackendSettings",
    "BucketSettings",
    "CloudRunSettings",
    "DockerHubSettings",
    "ExistingNetworkSettings",
    "GatewaySettings",
    "GatewayStack",
    "ImageSettings",
    "MetricsSettings",
    "MountSettings",
    "ProbeSettings",
    "ReadinessProbeSettings",
    "RolloutSettings",
    "Settings",
    "SmokeSettings",
    "TpuSettings",
]
