"""What a change of a stack's settings does to what runs, known from the settings alone.

The engine decides in the end; where it has a state of the stack, its own preview stands beside this. A test compares the two.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

from contracts.fields import camel_case
from contracts.labels import StackLimits
from scripts.preview.plans import StackDescription

StackEffect = Literal["nothing", "update", "restart", "revision", "service", "capacity", "target"]
"""From the mildest: nothing that runs; resources beside the server; the server restarts on its machine; a new revision of the service; another
service; other TPU capacity; another target."""

ORDER: Final[Sequence[StackEffect]] = ("nothing", "update", "restart", "revision", "service", "capacity", "target")

_NOTHING: Final = (
    "smoke.",
    "workload",
    "measuredTokPerS",
    "acceptFindings",
    "prices",
    "endpointUrl",
    "bucket.region",
    "modelRevision",
    "modelConfig",
    "draftConfig",
    "quantization",
    "image.version",
    "image.supports",
    "tpu.waitPerZone",
    "tpu.waitTotal",
    "tpu.waitFor",
    "tpu.renewBefore",
    "tpu.readyTimeout",
    "tpu.allowReplaceActive",
    "tpu.existingNetwork.privateGoogleAccess",
    "cloudRun.gpuQuota",
    "cloudRun.cpuQuota",
    "cloudRun.memoryQuota",
)
"""Settings that change the plan, the outputs, or a wait. Where they change the server, its arguments or its environment differ too."""
_BESIDE: Final = (
    "labels",
    *(camel_case(field.name.removesuffix("_s")) for field in fields(StackLimits)),
    "dockerHub.",
    "bucket.forceDestroy",
    "bucket.retainOnDestroy",
    "tpu.compileCache",
    "tpu.tunnelMembers",
    "tpu.tunnelRole",
    "cloudRun.public",
    "cloudRun.invokers",
    "cloudRun.deletionProtection",
    "cloudRun.ingress",
    "cloudRun.rollout.",
)
_CAPACITY: Final = (
    "gcp:project",
    "tpu.api",
    "tpu.acceleratorType",
    "tpu.provisioning",
    "tpu.reservation",
    "tpu.maxRunDuration",
    "tpu.bootDiskSizeGb",
    "tpu.runtimeVersion",
    "tpu.existingNetwork.",
)
"""What a queued resource cannot change: those inputs of the provider `gcp-tpu` whose change replaces it."""
_BEFORE_IT_EXISTED: Final = {"tpu.api": "cloud-tpu"}
"""Settings of capacity that plans of earlier releases do not have -> what those releases did. Such a plan against a new one is no change."""
_SERVICE: Final = ("gcp:project", "cloudRun.region")
ZONES: Final = "tpu.zones"
_ROLLOUT: Final = "cloudRun.rollout."
TRAFFIC: Final = f"{_ROLLOUT}traffic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedValue:
    """A value that differs; None where it is not set."""

    key: str
    before: str | None
    after: str | None


def changed_values(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ChangedValue, ...]:
    """Return what differs, in the order of the new texts, with removed keys at the end."""
    keys = dict.fromkeys((*after, *before))
    return tuple(
        ChangedValue(key=key, before=before.get(key), after=after.get(key))
        for key in keys
        if before.get(key, _BEFORE_IT_EXISTED.get(key)) != after.get(key, _BEFORE_IT_EXISTED.get(key))
    )


def zones_of(described: StackDescription) -> Sequence[str]:
    """Return the zones of a TPU stack in order, none for another stack."""
    text = described.settings.get(ZONES, "")
    return text.split(", ") if text else ()


def rolls_out(described: StackDescription) -> bool:
    """Return whether a new revision of the stack has no requests before `scripts.rollout` has checked it."""
    return any(key.startswith(_ROLLOUT) for key in described.settings)


def removed_zones(before: StackDescription, after: StackDescription) -> Sequence[str]:
    """Return the zones that the new settings no longer have: capacity in one of them is given up."""
    kept = zones_of(after)
    return [zone for zone in zones_of(before) if zone not in kept]


def effect_of(before: StackDescription, after: StackDescription) -> StackEffect:
    """Return the strongest effect of a change."""
    if before.settings.get("target") != after.settings.get("target"):
        return "target"
    serves: StackEffect = "restart" if after.settings.get("target") == "tpu" else "revision"
    found: set[StackEffect] = {"nothing"}
    found |= {_effect(change, serves) for change in changed_values(before.settings, after.settings)}
    if before.flags != after.flags or before.environment != after.environment:
        found.add(serves)
    if removed_zones(before, after):
        found.add("capacity")
    return max(found, key=ORDER.index)


def capacity_reasons(before: StackDescription, after: StackDescription) -> Sequence[ChangedValue]:
    """Return the changed settings that replace the queued resource, or the service of Cloud Run."""
    settings = changed_values(before.settings, after.settings)
    moved = [change for change in settings if change.key == "target"]
    if moved:
        return moved
    names = _CAPACITY if after.settings.get("target") == "tpu" else _SERVICE
    gone = bool(removed_zones(before, after))
    return [change for change in settings if _named(change.key, names) or (change.key == ZONES and gone)]


def _effect(change: ChangedValue, serves: StackEffect) -> StackEffect:
    rules: tuple[tuple[Callable[[str], bool], StackEffect], ...] = (
        (lambda key: key == ZONES, "update"),
        (lambda key: _named(key, _NOTHING), "nothing"),
        (lambda key: serves == "restart" and _named(key, _CAPACITY), "capacity"),
        (lambda key: serves == "revision" and _named(key, _SERVICE), "service"),
        (lambda key: _named(key, _BESIDE), "update"),
        (lambda _: True, serves),
    )
    return next(effect for applies, effect in rules if applies(change.key))


def _named(key: str, names: Sequence[str]) -> bool:
    return any(key.startswith(name) if name.endswith(".") else key == name for name in names)


def weights_to_stage(before: StackDescription | None, after: StackDescription) -> Iterator[str]:
    """Yield the reasons why weights have to be staged before the next `up`; none where they are staged or come from elsewhere."""
    if after.settings.get("weights") != "bucket":
        return
    if before is None or before.settings.get("weights") != "bucket":
        yield "its bucket has no weights yet"
        return
    if before.flags.get("model") != after.flags.get("model"):
        yield "the model changed"
    if _bucket_region(before) != _bucket_region(after) and "bucket.existing" not in after.settings:
        yield "its bucket would be in another region, and `pulumi up` refuses to replace a bucket with weights"
    for key in ("bucket.existing", "bucket.prefix"):
        if before.settings.get(key) != after.settings.get(key):
            yield f"{key} changed"


def _bucket_region(described: StackDescription) -> str:
    zones = zones_of(described)
    return zones[0].rpartition("-")[0] if zones else described.settings.get("cloudRun.region", "")
