"""Preview stacks with the Pulumi engine."""

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cloud.simulated import is_simulated
from contracts.errors import CommandRefusedError, ScriptError
from contracts.masking import masked
from engine import runner
from engine.changes import changes_of
from engine.previewed import PreviewFailedError, preview, selected_or_new
from engine.steps import losses_in
from scripts.cli.command import say
from scripts.cli.frozen import frozen_here
from scripts.cli.hidden import environment_secrets
from scripts.cli.settings import stack_settings
from scripts.preview.against_base import Base, between
from scripts.preview.plans import UNKNOWN_PROJECT
from scripts.preview.report import StackPreview, write
from scripts.preview.without_secrets import without_secrets
from stacks.loading import is_gateway_file

_REFUSAL = re.compile(r"\b403\b|PERMISSION_DENIED|has not been used in project")
"""Pieces of Google's error messages that point to the project or the caller."""


def preview_stacks(
    names: Sequence[str], out: Path, *, create: bool, hide_secrets: bool = False, base: Base | None = None
) -> Sequence[StackPreview]:
    """Preview stacks in sequence and store each result in `out`. A failed preview is also a result.

    With `create`, a stack that is not in the backend is previewed as a new one, in a temporary backend. The real backend is not written to, so
    read access is sufficient. With `base`, such a stack is compared with the base in the same way, and skipped if it is the same. With
    `hide_secrets`, the engine decrypts nothing.

    Raises CommandRefusedError if a stack has no settings file.
    """
    known = runner.require_stacks(names)
    runner.pulumi()  # fails early without an engine
    chosen = names or known
    skipped = (_same_and_new(base) if base and create else frozenset[str]()) & frozenset(chosen)
    if skipped:
        say("preview", f"{len(skipped)} of {len(chosen)} stacks have the plan and settings of the base; skipping them")
    previews: list[StackPreview] = []
    for name in chosen:
        kind = StackPreview(stack=name, simulated=is_simulated(), without_secrets=hide_secrets)
        if name in skipped:
            previews.append(_priced(kind).model_copy(update={"new_stack": True, "skipped": True}))
        else:
            previews.append(_preview(kind, create=create, base=base))
        write(out, previews[-1])
    return previews


def _same_and_new(base: Base) -> frozenset[str]:
    """Return the stacks that are the same in the base and are not in the backend: their preview has nothing to show."""
    try:
        return base.same - runner.listed_stacks() if base.same else base.same
    except ScriptError:
        return frozenset()  # the preview of each stack reports the backend's error


def _preview(kind: StackPreview, *, create: bool, base: Base | None) -> StackPreview:
    """Return the preview of one stack, or the engine's error."""
    say("preview", f"{kind.stack} ...")
    started_s = time.monotonic()
    result = _priced(kind)
    try:
        changes = _changes(kind, create=create, base=base)
    except ScriptError as error:
        changes = {"error": masked(str(error))}
    return result.model_copy(update={**changes, "elapsed_s": round(time.monotonic() - started_s, 1)})


def _priced(kind: StackPreview) -> StackPreview:
    return kind.model_copy(update={"usd_per_hour": _usd_per_hour(kind.stack)})


def _changes(kind: StackPreview, *, create: bool, base: Base | None) -> dict[str, object]:
    """Return the fields of a preview. A stack without a state is compared with the base. Raises ScriptError with the engine's error message."""
    stack, hide = kind.stack, kind.without_secrets
    document, is_known = _previewed(stack, create=create, hide=hide)
    fields: dict[str, object] = {"new_stack": not is_known}
    if not is_known and base is not None and stack in base.stacks:
        say("preview", f"{stack} of the base ...")
        try:
            with contextlib.chdir(base.folder):
                before, _ = _previewed(stack, create=True, hide=hide)
            document, fields["against_base"] = between(before, document), True
        except ScriptError as error:
            fields["base_error"] = masked(str(error))
            say("preview", f"{stack} of the base failed: {fields['base_error']}")
    secrets = environment_secrets()
    changes, unchanged, found = changes_of(document, secrets)
    warnings = tuple(masked(warning, secrets) for warning in found)
    return {**fields, "changes": changes, "losses": losses_in(document), "unchanged": unchanged, "warnings": warnings}


def _previewed(stack: str, *, create: bool, hide: bool) -> tuple[Mapping[str, object], bool]:
    """Return the engine's preview of the current folder's project, and whether the backend has the stack.

    With `hide`, every secret is a stand-in. Raises ScriptError with the engine's error message.
    """
    try:
        with contextlib.ExitStack() as held:
            hides = hide and not is_gateway_file(runner.project_folder() / f"Pulumi.{stack}.yaml")  # a gateway has none
            if hides:
                held.enter_context(frozen_here(stack))
            is_known = held.enter_context((without_secrets if hides else selected_or_new)(stack, create=create))
            return preview(stack), is_known
    except PreviewFailedError as failed:
        raise ScriptError(_with_hint(stack, str(failed))) from None


def _with_hint(stack: str, text: str) -> str:
    if _REFUSAL.search(text) is None:
        return text
    from stacks.planned import doctor_hint  # noqa: PLC0415 - only needed after a refusal

    return f"{text}\n{doctor_hint(stack)}"


def _usd_per_hour(stack: str) -> float | None:
    """Return the planned cost, or None if the settings are invalid; the preview then reports the reason."""
    from planning import PlanningError, plan  # noqa: PLC0415 - only after the engine was found
    from stacks.planned import to_deployment  # noqa: PLC0415 - the same

    try:
        return plan(to_deployment(stack_settings(stack, project=UNKNOWN_PROJECT))).cost.usd_per_hour
    except (CommandRefusedError, PlanningError):
        return None
