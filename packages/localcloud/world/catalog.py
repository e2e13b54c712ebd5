"""Google's offers in `data/catalog.json`: Cloud Run's GPUs and list prices. `make docs` writes that file from `planning/data`."""

from collections.abc import Sequence
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
