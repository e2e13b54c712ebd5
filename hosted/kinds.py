"""The two kinds of servers: class, target, and the settings key of each input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planning.data.checkpoints import find_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of server."""

    name: str
    """Class of the component."""
    target: str
    """`tpu` or `cloud-run`."""
    block: str
    """Block of the target in a settings file."""
    keys: Mapping[str, str]
    """Settings key of each input, such as `tpu.maxRunDuration` of `maxRunDuration`."""

    def input_of(self, key: str) -> str:
        """Return the input of a settings key, such as `zones` of `tpu.zones`, or its place in `settings`."""
        return next((own for own, its in self.keys.items() if its == key), f"settings.{key}")


TPU: Final = Kind(
    name="TpuServer",
    target="tpu",
    block="tpu",
    keys={
        "model": "model",
        "accelerator": "tpu.acceleratorType",
        "zones": "tpu.zones",
        "provisioning": "tpu.provisioning",
        "maxRunDuration": "tpu.maxRunDuration",
        "tunnelMembers": "tpu.tunnelMembers",
    },
)
CLOUD_RUN: Final = Kind(
    name="CloudRunServer",
    target="cloud-run",
    block="cloudRun",
    keys={
        "model": "model",
        "region": "cloudRun.region",
        "gpu": "cloudRun.gpu",
        "concurrency": "cloudRun.concurrency",
        "minInstances": "cloudRun.minInstances",
        "maxInstances": "cloudRun.maxInstances",
        "invokers": "cloudRun.invokers",
    },
)
KINDS: Final = (TPU, CLOUD_RUN)

_INSTANCES: Final[Mapping[str, Mapping[str, object]]] = {
    "nvidia-l4": {"cpu": 8, "memory": "20Gi"},
    "nvidia-rtx-pro-6000": {"cpu": 20, "memory": "80Gi"},
}
"""Instance of each GPU: two of 20 GiB are within the memory quota of a new project; 20 vCPU and 80 GiB are the least with the larger GPU."""
_SCALING: Final[Mapping[str, object]] = {"concurrency": 16, "maxInstances": 1}


def default_settings(kind: Kind, given: Mapping[str, object]) -> Mapping[str, object]:
    """Return settings in effect if neither an input nor `settings` states them.

    Args:
        kind: the kind of server.
        given: its inputs.
    """
    known = find_checkpoint(str(given.get("model")))
    commit = known.commit if known is not None and known.id == given.get("model") else ""
    pinned: Mapping[str, object] = {"modelRevision": commit} if commit else {}
    if kind is TPU:
        return pinned
    instance = _INSTANCES.get(str(given.get("gpu")), _INSTANCES["nvidia-l4"])
    return {**pinned, "cloudRun": {**instance, **_SCALING}}
