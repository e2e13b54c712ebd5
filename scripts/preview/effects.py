"""Effect of a change on a deployed stack, for the comment and for `gemma up`."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, Literal

from gemma_serving.contracts.server_change import IMAGE, MODEL, ChangedValue, ServerChange, changed_values
from gemma_serving.planning.settings.annotations import EffectName
from gemma_serving.planning.settings.fields import block_fields
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.preview.plans import RESTART, START, StackDescription

StackEffect = Literal[
    "nothing", "update", "restart", "revision", "service", "capacity", "target", "removed", "blocked", "new",
    "undeployed", "at risk", "kept",
]  # fmt: skip
HEADINGS: Final[Mapping[StackEffect, str]] = {
    "nothing": "no change to running resources",
    "update": "updates other resources; the server keeps running",
    "restart": "restarts the server on its node and keeps the capacity",
    "revision": "creates a new revision",
    "service": "replaces the service",
    "capacity": "releases its TPU capacity",
    "target": "moves to another target",
    "removed": "loses its settings file",
    "blocked": "is blocked",
    "new": "new stack",
    "undeployed": "changes a stack that is not deployed",
    "at risk": "may release its TPU capacity",
    "kept": "keeps its capacity; at most restarts the server",
}
"""A change of settings has one of the first seven, from mildest to strongest."""
_ORDER: Final = list(HEADINGS)

PROJECT: Final = "gcp:project"
ZONES: Final = "tpu.zones"
NEW_CAPACITY: Final = (
    "New capacity can take hours or never arrive. "
    "Google does not hold your place, and a rollback has to request it again."
)


def effect_of(before: StackDescription, after: StackDescription) -> StackEffect:
    """Return the strongest effect of a change of settings."""
    if before.settings.get("target") != after.settings.get("target"):
        return "target"
    serves: StackEffect = "restart" if after.is_tpu else "revision"
    found: set[StackEffect] = {"nothing"}
    found |= {_effect(change, serves) for change in changed_values(before.settings, after.settings)}
    if before.flags != after.flags or before.environment != after.environment:
        found.add(serves)
    if removed_zones(before, after):
        found.add("capacity")
    return max(found, key=_ORDER.index)


def recompiles(before: StackDescription, after: StackDescription) -> bool:
    """Return whether the new server cannot use the compiled programs of the old one."""
    return ServerChange(changed_values(_served(before), _served(after))).compiles


def _served(described: StackDescription) -> dict[str, str]:
    """Return the flags, variables, weights and image of a server."""
    settings, flags = described.settings, described.flags
    folder = f"{flags.get(MODEL, '')} {settings.get('bucket.manifest', '')}"
    image = f"{settings.get('image.buildContext', '')}@{settings.get('image.digest', '')}"
    return {**flags, **described.environment, MODEL: folder, IMAGE: image}


def replacing(before: StackDescription, after: StackDescription) -> Sequence[ChangedValue]:
    """Return the changed settings that replace the queued resource or the service."""
    settings = {change.key: change for change in changed_values(before.settings, after.settings)}
    if "target" in settings:
        return [settings["target"]]
    replaced = {key for key, change in settings.items() if _effect(change, "restart") in {"capacity", "service"}}
    replaced |= {ZONES} if removed_zones(before, after) else set()
    return [change for key, change in settings.items() if key in replaced]


def _effect(change: ChangedValue, serves: StackEffect) -> StackEffect:
    """Return the effect that the setting or its block states, or `serves`."""
    if change.key == PROJECT:  # without this key, a file uses the project of the environment, which is unknown here
        return "nothing" if None in {change.before, change.after} else "capacity" if serves == "restart" else "service"
    effects, key = stated_effects(), change.key
    while key and key not in effects:
        key = key.rpartition(".")[0]
    effect = effects.get(key) or serves
    return "update" if (effect, serves) == ("revision", "restart") else effect


@cache
def stated_effects() -> Mapping[str, EffectName | None]:
    """Return the effect of each setting by key (`planning.settings.annotations.OnChange`)."""
    return {field.key: field.effect for field in block_fields(Settings)}


def zones_of(described: StackDescription) -> Sequence[str]:
    """Return the zones of a TPU stack in order; empty for other stacks."""
    text = described.settings.get(ZONES, "")
    return text.split(", ") if text else ()


def removed_zones(before: StackDescription, after: StackDescription) -> Sequence[str]:
    """Return the zones that the new settings no longer list. Capacity in one of them is released."""
    return [zone for zone in zones_of(before) if zone not in zones_of(after)]


def permission(after: StackDescription) -> str:
    """Return the sentence about what `up` needs to release capacity."""
    if not after.is_tpu:
        return "`up` deletes the TPU VM and its capacity. Requests fail until the service is ready."
    if after.settings.get("tpu.allowReplaceActive") == "true":
        return "`tpu.allowReplaceActive` is true, so `up` does it without confirmation."
    return "`up` rejects this while the capacity is ACTIVE, because `tpu.allowReplaceActive` is false."


def _pause(after: StackDescription, compiles: bool | None) -> str:
    if compiles:
        return f"{after.recompile} (planned), because it compiles again"
    longer = f", or {after.recompile} if it compiles again" if compiles is None else ""
    return f"{after.figures[RESTART]} (planned){longer}"


def consequences(effect: StackEffect, after: StackDescription, *, compiles: bool | None) -> Iterator[str]:
    """Yield what happens to requests, and how long it takes. `compiles`: the compiled programs change; None if that is unknown."""
    start = after.figures[START]
    first = f"{start}, each later one {after.later}" if after.later else start
    if effect == "restart":
        pause = _pause(after, compiles)
        yield f"Requests fail while the server restarts: about {pause}. Queued resource, node and address stay the same."
        yield (
            "If the new server does not become ready, the node restores the previous configuration "
            "and `up` fails with the reason."
        )
    elif effect == "revision":
        yield (
            f"The old revision serves until the new one is ready, after about {start} (planned). "
            "Until then, both use GPU quota."
        )
    elif effect == "at risk":
        yield f"If the capacity must be requested again, the first start takes {first} (planned)."
    elif effect in {"capacity", "target", "service"}:
        yield f"The first start takes {first} (planned)."
    elif effect == "update":
        yield "No requests are lost."
