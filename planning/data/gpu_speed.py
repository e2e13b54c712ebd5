"""Speed of GPUs: rows of gpu_speed.json, each with its unit, the measurements that it was fitted to, and its sources.

A row changes only if two sources of different cards or publishers agree; one with a single source states that, and its band is wide.
docs/authors/planner-internals.md shows the rows.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from msgspec import Struct

from planning.data.tables import Table, data_file, row_of


class GpuConstant(Struct, frozen=True, kw_only=True):
    """One row."""

    name: str
    value: float
    unit: str
    what: str
    fitted_to: str
    sources: tuple[str, ...]


CONSTANTS: Final[Mapping[str, GpuConstant]] = Table(
    lambda: {row["name"]: row_of(GpuConstant, row) for row in data_file("gpu_speed.json")}
)
"""By name."""


@cache
def constant(name: str) -> float:
    """Return the value of a row."""
    return CONSTANTS[name].value


@cache
def compute_share(generation: str, scheme: str) -> float:
    """Return the fraction of the dense bf16 peak that a prompt's matrix products reach with a scheme; above 1 with dedicated units."""
    share = CONSTANTS.get(f"compute.{generation}", CONSTANTS["compute"]).value
    if scheme == "fp8" and generation in {"hopper", "blackwell", "datacenter-blackwell"}:
        return share * constant("compute.fp8")
    factor = CONSTANTS.get(f"compute.{generation}.{scheme}")
    return share if factor is None else share * factor.value
