"""Google's offers in `data/catalog.json`: TPUs, Cloud Run's GPUs and list prices. `make docs` writes that file from `gemma_serving/planning/data`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from localcloud.json_values import JsonObject, packaged, part


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """A GPU of Cloud Run: minimum and maximum CPUs and memory of its container, its regions and its quota."""

    min_cpu: float = 0
    min_memory_gib: float = 0
    max_cpu: float
    max_memory_gib: float
    regions: Sequence[str] = ()
    """Without those by invitation."""
    new_project_quota: int = 0
    quota_metric: str = ""
    quota_id: str = ""
    """Prefix of its quota ids."""
    quota_units: int = 1
    """Units of the quota per GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuGeneration:
    """A TPU generation, with the Cloud TPU API's names. Empty for what is unknown."""

    config_type: str
    """Type in an acceleratorConfig."""
    types: Mapping[str, str]
    """Accelerator type -> topology."""
    zones: Sequence[str]
    flex_start_zones: Sequence[str]
    runtime_version: str
    boot_image: str
    quota_metric: str
    quota_id: str
    """Metric and prefix of the ids of the Cloud TPU API's quotas."""
    instance_quota_metric: str
    instance_quota_id: str
    """Metric and id of the preemptible quota of Compute Engine instances."""
    instance_family: str
    """Value of the dimension `tpu_family` in the quota of all families."""
    machine_types: Mapping[str, str]
    """Machine type of Compute Engine -> accelerator type with the same hardware."""


@cache
def tpu_generations() -> dict[str, TpuGeneration]:
    """Return the TPU generations by the Cloud TPU API's name, such as `v5litepod`."""
    return {name: TpuGeneration(**row) for name, row in part(_catalog(), "tpus").items()}


@cache
def tpu_machine_types() -> dict[str, str]:
    """Return the accelerator type of each machine type of Compute Engine with TPUs (Compute Engine, "TPU machines")."""
    return {key: one for generation in tpu_generations().values() for key, one in generation.machine_types.items()}


def generation_of_type(accelerator_type: str) -> TpuGeneration | None:
    """Return the generation of an accelerator type such as `v6e-4`; None for an unknown one."""
    return tpu_generations().get(accelerator_type.rpartition("-")[0])


@cache
def gpu_types() -> dict[str, GpuType]:
    """Return Cloud Run's GPUs by type, such as `nvidia-l4`."""
    return {name: GpuType(**row) for name, row in part(_catalog(), "gpus").items()}


def list_prices(key: str) -> JsonObject:
    """Return a price in US dollars by region, under its name in the planner's list."""
    return part(part(_catalog(), "prices"), key)


@cache
def _catalog() -> JsonObject:
    return packaged("localcloud.world", "catalog.json")
