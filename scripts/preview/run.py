"""Preview stacks with the Pulumi engine.

Without a state every resource is new: two previews, one per commit, show what a pull request changes.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from cloud.simulated import is_simulated
from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import as_mapping
from contracts.masking import masked
from engine import runner
from engine.changes import ResourceChange, changes_of
from engine.previewed import PreviewFailedError, preview, selected_or_new, steps_in
from scripts.cli.command import say
from scripts.cli.frozen import frozen_here, program_hash, settings_inputs
from scripts.cli.hidden import environment_secrets
from scripts.preview.without_secrets import without_secrets
from stacks.loading import is_gateway_file
from stacks.planned import doctor_hint

_REFUSAL: Final = re.compile(r"\b403\b|PERMISSION_DENIED|has not been used in project")
"""Pieces of Google's error messages that point to the project or the caller."""
_WORDS: Final = frozenset({"nextSteps"})
"""Inputs that are messages only. A change of them changes no resource."""
_ORDER: Final = ("create", "update", "delete")


class StackPreview(BaseModel):
    """Preview of one stack. `error` is set if it failed.

    `new_stack`: the backend has no state of it.
    `against_base`: `changes` are the differences between new deployments of base and head.
    `skipped`: plan and settings are the base's, so the engine did not run.
    """

    model_config = ConfigDict(frozen=True)
    stack: str
    changes: tuple[ResourceChange, ...] = ()
    unchanged: int = 0
    warnings: tuple[str, ...] = ()
    error: str | None = None
    simulated: bool = False
    new_stack: bool = False
    without_secrets: bool = False
    against_base: bool = False
    skipped: bool = False


def write_previews(folder: Path, previews: Sequence[StackPreview]) -> None:
    """Store each preview as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in previews:
        (folder / f"{one.stack}.json").write_text(one.model_dump_json(indent=1) + "\n", encoding="utf-8")


def preview_stacks(
    names: Sequence[str],
    *,
    create: bool,
    hide_secrets: bool = False,
    base: Path | None = None,
    same: frozenset[str] = frozenset(),
) -> Sequence[StackPreview]:
    """Preview stacks in sequence. A failed preview is also a result.

    With `create`, a stack that the backend does not know is previewed in a temporary one.
    It is compared with the checkout `base`, and skipped if it is one of `same`.
    With `hide_secrets`, the engine decrypts nothing.

    Raises CommandRefusedError if a stack has no settings file.
    """
    known = runner.require_stacks(names)
    runner.pulumi()  # fails early without an engine
    chosen = names or known
    skipped = same & frozenset(chosen) - _listed() if create and same else frozenset[str]()
    if skipped:
        say("preview", f"{len(skipped)} of {len(chosen)} stacks have the plan and settings of the base; skipping them")
    previews: list[StackPreview] = []
    for name in chosen:
        kind = StackPreview(
            stack=name,
            simulated=is_simulated(),
            without_secrets=hide_secrets,
            new_stack=name in skipped,
            skipped=name in skipped,
        )
        previews.append(kind if kind.skipped else _preview(kind, create=create, base=base))
    return previews


def _listed() -> frozenset[str]:
    try:
        return runner.listed_stacks()
    except ScriptError:
        return frozenset(runner.require_stacks(()))  # each preview reports the backend's error


def _preview(kind: StackPreview, *, create: bool, base: Path | None) -> StackPreview:
    """Return the preview of one stack, or the engine's error."""
    stack, hide, against_base = kind.stack, kind.without_secrets, False
    say("preview", f"{stack} ...")
    try:
        document, is_known = _previewed(stack, create=create, hide=hide)
        if not is_known and base is not None and stack in runner.stacks_in(base):
            say("preview", f"{stack} of the base ...")
            try:
                with contextlib.chdir(base):
                    before, _ = _previewed(stack, create=True, hide=hide)
                document, against_base = between(before, document), True
            except ScriptError as error:
                why = masked(str(error))
                say("preview", f"{stack} of the base failed, so the whole deployment is shown: {why}")
    except ScriptError as error:
        return kind.model_copy(update={"error": masked(str(error))})
    secrets = environment_secrets()
    changes, unchanged, warnings = changes_of(document, secrets)
    found = {
        "changes": changes,
        "unchanged": unchanged,
        "warnings": tuple(masked(warning, secrets) for warning in warnings),
        "new_stack": not is_known,
        "against_base": against_base,
    }
    return kind.model_copy(update=found)


def _previewed(stack: str, *, create: bool, hide: bool) -> tuple[Mapping[str, object], bool]:
    """Return the engine's preview of the current folder's project, and whether the backend has the stack.

    Raises ScriptError with the engine's message.
    """
    try:
        with contextlib.ExitStack() as held:
            hides = hide and not is_gateway_file(runner.project_folder() / f"Pulumi.{stack}.yaml")  # a gateway has none
            if hides:
                held.enter_context(frozen_here(stack))
            is_known = held.enter_context((without_secrets if hides else selected_or_new)(stack, create=create))
            return preview(stack), is_known
    except PreviewFailedError as failed:
        text = str(failed)
        if _REFUSAL.search(text):
            text = f"{text}\n{doctor_hint(stack)}"
        raise ScriptError(text) from None


def same_stacks(folder: Path, head_folder: Path, unchanged: Sequence[str]) -> frozenset[str]:
    """Return those stacks whose settings, their files, and the program are the same in both checkouts."""
    if not unchanged or program_hash(folder) != program_hash(head_folder):
        return frozenset()
    return frozenset(stack for stack in unchanged if _same_settings(stack, folder, head_folder))


def _same_settings(stack: str, folder: Path, head_folder: Path) -> bool:
    try:
        return settings_inputs(stack, folder) == settings_inputs(stack, head_folder)
    except CommandRefusedError:
        return False  # the preview shows why they cannot be read


def between(base: Mapping[str, object], head: Mapping[str, object]) -> Mapping[str, object]:
    """Return the difference of two engine previews without a state, as a preview."""
    before, after = _declared(base), _declared(head)
    steps = [_step(urn, before.get(urn), after.get(urn)) for urn in before.keys() | after.keys()]
    changed = [step for step in steps if step["op"] != "same"]
    changed.sort(key=lambda step: (_ORDER.index(str(step["op"])), str(step["urn"])))
    return {**head, "steps": changed, "changeSummary": {"same": len(steps) - len(changed)}}


def _declared(document: Mapping[str, object]) -> Mapping[str, Mapping[str, object]]:
    """Return the resources of a preview by URN, without inputs that a provider adds for itself."""
    found: dict[str, Mapping[str, object]] = {}
    for step in steps_in(document):
        if state := as_mapping(step.get("newState")):
            inputs = as_mapping(state.get("inputs"))
            kept = {key: value for key, value in inputs.items() if not key.startswith("__") and key not in _WORDS}
            found[str(step.get("urn"))] = {**state, "inputs": kept}
    return found


def _step(urn: str, old: Mapping[str, object] | None, new: Mapping[str, object] | None) -> Mapping[str, object]:
    if old is None or new is None:
        op, key = ("create", "newState") if old is None else ("delete", "oldState")
        return {"op": op, "urn": urn, key: new or old}
    before, after = as_mapping(old["inputs"]), as_mapping(new["inputs"])
    differs = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return {
        "op": "update" if differs else "same",
        "urn": urn,
        "oldState": old,
        "newState": new,
        "diffReasons": differs,
    }
