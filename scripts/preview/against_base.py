"""Comparison with the base for stacks that have no state: what a new deployment of the pull request creates, and one of the base does not.

A preview without a state shows every resource as new. Two of them, one per commit, show what the pull request changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.fields import as_mapping
from engine.previewed import steps_in
from engine.runner import stacks_in
from scripts.cli.frozen import program_hash, settings_inputs
from scripts.preview.difference import differences
from scripts.preview.plans import PlansDocument

_BOOKKEEPING: Final = "__"
"""Prefix of inputs that a provider adds for itself."""
_WORDS: Final = frozenset({"nextSteps"})
"""Inputs that are messages only. A change of them changes no resource."""
_ORDER: Final = ("create", "update", "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Checkout of the base. `same`: stacks that both checkouts deploy in the same way."""

    folder: Path
    stacks: frozenset[str]
    same: frozenset[str]


def base_of(folder: Path, head_folder: Path, base: PlansDocument, head: PlansDocument) -> Base:
    """Return the base with the stacks whose plan, settings, files of the settings, and program are the same in both checkouts."""
    same = [one.stack for one in differences(base, head) if one.is_same]
    if program_hash(folder) != program_hash(head_folder):
        same = []
    return Base(
        folder=folder,
        stacks=frozenset(stacks_in(folder)),
        same=frozenset(stack for stack in same if _same_settings(stack, folder, head_folder)),
    )


def _same_settings(stack: str, folder: Path, head_folder: Path) -> bool:
    """Return whether a stack's settings and their files are the same. False if they cannot be read: the engine then shows why."""
    try:
        return settings_inputs(stack, folder) == settings_inputs(stack, head_folder)
    except CommandRefusedError:
        return False


def between(base: Mapping[str, object], head: Mapping[str, object]) -> Mapping[str, object]:
    """Return the difference of two engine previews without a state, as a preview: resources are created, updated or deleted."""
    before, after = _declared(base), _declared(head)
    steps = [_step(urn, before.get(urn), after.get(urn)) for urn in before.keys() | after.keys()]
    changed = [step for step in steps if step["op"] != "same"]
    changed.sort(key=lambda step: (_ORDER.index(str(step["op"])), str(step["urn"])))
    return {**head, "steps": changed, "changeSummary": {"same": len(steps) - len(changed)}}


def _declared(preview: Mapping[str, object]) -> Mapping[str, Mapping[str, object]]:
    """Return the resources of a preview by URN. The engine writes every secret as `[secret]`, so secrets look alike."""
    found: dict[str, Mapping[str, object]] = {}
    for step in steps_in(preview):
        state = as_mapping(step.get("newState"))
        if state:
            found[str(step.get("urn"))] = {**state, "inputs": _inputs(as_mapping(state.get("inputs")))}
    return found


def _inputs(inputs: Mapping[str, object]) -> Mapping[str, object]:
    return {key: value for key, value in inputs.items() if not key.startswith(_BOOKKEEPING) and key not in _WORDS}


def _step(urn: str, old: Mapping[str, object] | None, new: Mapping[str, object] | None) -> Mapping[str, object]:
    if old is None or new is None:
        op, key = ("create", "newState") if old is None else ("delete", "oldState")
        return {"op": op, "urn": urn, key: new or old}
    before, after = as_mapping(old["inputs"]), as_mapping(new["inputs"])
    differs = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    op = "update" if differs else "same"
    return {"op": op, "urn": urn, "oldState": old, "newState": new, "diffReasons": differs}
