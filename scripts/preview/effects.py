"""Effect of a settings change on running resources, derived from the settings alone.

The engine decides in the end. If it has a state of the stack, the comment shows its preview too. A test compares the two.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, Literal

from contracts.server_change import ChangedValue
from scripts.preview.plans import StackDescription
from stacks.settings.block import EffectName
from stacks.settings.keys import gateway_fields, setting_fields

StackEffect = Literal["nothing", "update", "restart", "revision", "service", "capacity", "target"]
"""From mildest to strongest: nothing that runs; resources other than the server; a restart of the server on its node; a new revision of the
service; another service; other TPU capacity; another target."""

ORDER: Final[Sequence[StackEffect]] = ("nothing", "update", "restart", "revision", "service", "capacity", "target")

PROJECT: Final = "gcp:project"
ZONES: Final = "tpu.zones"
_ROLLOUT: Final = "cloudRun.rollout"
TRAFFIC: Final = f"{_ROLLOUT}.traffic"


def changed_values(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ChangedValue, ...]:
    """Return the differences in the order of the new texts, with removed keys at the end."""
    keys = dict.fromkeys((*after, *before))
    return tuple(
        ChangedValue(key=key, before=before.get(key), after=after.get(key))
        for key in keys
        if before.get(key) != after.get(key)
    )


def zones_of(described: StackDescription) -> Sequence[str]:
    """Return the zones of a TPU stack in order; empty for other stacks."""
    text = described.settings.get(ZONES, "")
    return text.split(", ") if text else ()


def rolls_out(described: StackDescription) -> bool:
    """Return whether a new revision of the stack receives no traffic until `gemma rollout` has checked it."""
    return any(key.startswith(_ROLLOUT) for key in described.settings)


def removed_zones(before: StackDescription, after: StackDescription) -> Sequence[str]:
    """Return the zones that the new settings no longer list. Capacity in one of them is released."""
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
    gone = bool(removed_zones(before, after))
    return [
        change
        for change in settings
        if _effect(change, "restart") in {"capacity", "service"} or (change.key == ZONES and gone)
    ]


def _effect(change: ChangedValue, serves: StackEffect) -> StackEffect:
    """Return the effect stated by the setting or its block, or `serves` if neither states one."""
    if change.key == PROJECT:
        return "capacity" if serves == "restart" else "service"
    effects, key = stated_effects(), change.key
    while key and key not in effects:
        key = key.rpartition(".")[0]
    effect = effects.get(key) or serves
    return "update" if (effect, serves) == ("revision", "restart") else effect


@cache
def stated_effects() -> Mapping[str, EffectName | None]:
    """Return the effect of each setting by key (`stacks.settings.block.OnChange`)."""
    return {field.key: field.effect for field in (*gateway_fields(), *setting_fields())}


def weights_to_stage(before: StackDescription | None, after: StackDescription) -> Iterator[str]:
    """Yield the reasons to stage weights before the next `up`. None if they are staged or come from another source."""
    if after.settings.get("weights") != "bucket":
        return
    if before is None or before.settings.get("weights") != "bucket":
        yield "its bucket has no weights yet"
        return
    if before.flags.get("model") != after.flags.get("model"):
        yield "the model changed"
    if _bucket_region(before) != _bucket_region(after) and "bucket.existing" not in after.settings:
        yield "its bucket will be in another region, and `pulumi up` refuses to replace a bucket with weights"
    for key in ("bucket.existing", "bucket.prefix"):
        if before.settings.get(key) != after.settings.get(key):
            yield f"{key} changed"


def _bucket_region(described: StackDescription) -> str:
    zones = zones_of(described)
    return zones[0].rpartition("-")[0] if zones else described.settings.get("cloudRun.region", "")
