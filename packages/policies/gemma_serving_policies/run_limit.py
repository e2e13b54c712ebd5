"""Rule `run-limit`: Google deletes or stops machines with a TPU or GPU after a limited time, because they cost several dollars per hour."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from gemma_serving_policies.rule import Answer, Config, Rule, Violation, absent, is_unknown, not_known, violation
from gemma_serving_policies.values import UNKNOWN, Found, Resource, found_at

SETTING: Final = "maxRunDurationS"
DEFAULT_LIMIT_S: Final = 7 * 86_400
"""Seven days: Google's limit for flex-start, https://cloud.google.com/tpu/docs/request-using-flex-start."""
QUEUED: Final = "gcp-tpu:index:QueuedResource"
MACHINES: Final = (
    "gcp:compute/instance:Instance",
    "gcp:compute/instanceTemplate:InstanceTemplate",
    "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
    "gcp:compute/instanceFromTemplate:InstanceFromTemplate",
    "gcp:compute/instanceFromMachineImage:InstanceFromMachineImage",
)
UNLIMITED: Final = ("gcp:tpu/v2Vm:V2Vm", "gcp:tpu/v2QueuedResource:V2QueuedResource")
"""TPU types of the gcp provider. They have no input for a run limit."""
SECONDS: Final = ("scheduling", "maxRunDuration", "seconds")
_ACCELERATED: Final = re.compile(r"^(a2|a3|a4|a4x|g2|g4|ct\d\w*|tpu\d\w*)-")
"""Machine types that include GPUs or TPUs: https://cloud.google.com/compute/docs/accelerator-optimized-machines."""


def _check(resource: Resource, config: Config) -> Iterator[Answer]:
    limit_s = _seconds(config[SETTING]) or DEFAULT_LIMIT_S
    if resource.type == QUEUED:
        yield from _limited(resource, limit_s, ["maxRunDurationS"], _flex_start(resource))
    elif resource.type in UNLIMITED:
        yield Violation(
            f"{resource.name}: {resource.type} has no run limit, but a TPU must end after at most {limit_s} s; "
            f"use {QUEUED} with `maxRunDurationS: {limit_s}`."
        )
    elif resource.type in MACHINES:
        accelerated = _is_accelerated(resource)
        if isinstance(accelerated, Found):
            yield not_known(resource, accelerated)
        elif accelerated:
            yield from _limited(resource, limit_s, SECONDS, " and `scheduling.instanceTerminationAction` to DELETE")


def _limited(resource: Resource, limit_s: int, keys: Sequence[str], more: str) -> Iterator[Answer]:
    path = ".".join(keys)
    allowed = f"a TPU or GPU machine must end after at most {limit_s} s"
    fix = f"set `{path}` to {limit_s} or less{more}"
    values = list(found_at(resource.inputs, *keys))
    if not values:
        yield absent(resource, path, allowed, fix)
    for found in values:
        seconds = _seconds(found.value)
        if is_unknown(found):
            yield not_known(resource, found)
        elif seconds is None or not 0 < seconds <= limit_s:
            yield violation(resource, found, allowed, fix)


def _flex_start(resource: Resource) -> str:
    """Return the other half of the fix for a queued resource: Cloud TPU accepts a run limit for flex-start only, Compute Engine for each model."""
    own = resource.inputs.get("provisioningModel") in ("flex-start", UNKNOWN)
    return "" if own or resource.inputs.get("api") == "compute-engine" else " and `provisioningModel` to flex-start"


def _is_accelerated(resource: Resource) -> bool | Found:
    """Return whether a machine has a GPU or TPU, or the input that the preview would have to know."""
    unknown: Found | None = None
    for found in (*found_at(resource.inputs, "guestAccelerators"), *found_at(resource.inputs, "machineType")):
        if is_unknown(found):
            unknown = found
        elif not isinstance(found.value, str) or _ACCELERATED.match(found.value.rpartition("/")[2]):
            return True
    return unknown or False


def _seconds(value: object) -> int | None:
    """Return a number of seconds. The engine passes numbers as floats, and some providers as text."""
    if isinstance(value, str):
        return int(value) if value.isdecimal() else None
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


RULE: Final = Rule(
    name="run-limit",
    description="Machines with a TPU or GPU end after a limited time.",
    check=_check,
    own_settings={
        SETTING: {
            "type": "integer",
            "minimum": 1,
            "default": DEFAULT_LIMIT_S,
            "description": "Maximum run time of a machine, in seconds.",
        }
    },
)
