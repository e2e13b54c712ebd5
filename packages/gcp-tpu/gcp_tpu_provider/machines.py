"""TPU generations, machine types and quotas, read from machines.json, which the project's `make docs` writes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, cast


@dataclass(frozen=True, slots=True)
class ChipQuota:
    """A quota for chips of one generation."""

    metric: str
    id: str
    """Metric and id, as Google's errors, gcloud and the console show it: of queued resources for a zone, of instances for preemptible ones."""
    family: str = ""
    """Of instances: value of the dimension `tpu_family` in the quota of all families."""


@dataclass(frozen=True, slots=True)
class OutsideGeneration:
    """A generation that the Cloud TPU API does not offer."""

    title: str
    source: str


@cache
def _facts() -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", json.loads(Path(__file__).with_name("machines.json").read_text(encoding="utf-8")))


MACHINE_TYPES: Final[Mapping[str, str]] = _facts()["machine_types"]
"""Accelerator type -> machine type. Compute Engine lists v5e machine types but refuses to create them."""
GENERATIONS: Final[tuple[str, ...]] = tuple(_facts()["generations"])
"""Names of the generations that the Cloud TPU API offers."""


def quota_of(accelerator_type: str) -> ChipQuota | None:
    """Return the quotas for instances with an accelerator type; None if they are unknown."""
    found = _facts()["quotas"].get(accelerator_type.rpartition("-")[0])
    return None if found is None else ChipQuota(**found)


def chip_quota(accelerator_type: str, *, preemptible: bool) -> ChipQuota | None:
    """Return the quota for queued resources with an accelerator type; None if it is unknown."""
    found = _facts()["chip_quotas"].get(accelerator_type.rpartition("-")[0])
    return None if found is None else ChipQuota(**found["preemptible" if preemptible else "on_demand"])


def outside_generation(accelerator_type: str) -> OutsideGeneration | None:
    """Return the generation that an accelerator type means, if the Cloud TPU API does not offer it."""
    spelled = "".join(letter for letter in accelerator_type.lower() if letter.isalnum())
    for title, facts in _facts()["outside"].items():
        if spelled.startswith(tuple(facts["spellings"])):
            return OutsideGeneration(title, facts["source"])
    return None
