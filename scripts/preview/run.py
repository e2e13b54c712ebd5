"""Preview stacks with the Pulumi engine."""

import contextlib
import re
import time
from collections.abc import Sequence
from pathlib import Path

from cloud.simulated import is_simulated
from contracts.errors import CommandRefusedError, ScriptError
from contracts.masking import masked
from engine import runner
from engine.changes import changes_of
from engine.previewed import PreviewFailedError, preview, selected_or_new
from scripts.cli.command import say
from scripts.cli.frozen import frozen_here
from scripts.cli.hidden import environment_secrets
from scripts.cli.settings import stack_settings
from scripts.preview.plans import UNKNOWN_PROJECT
from scripts.preview.report import StackPreview, write
from scripts.preview.without_secrets import without_secrets

_REFUSAL = re.compile(r"\b403\b|PERMISSION_DENIED|has not been used in project")
"""Pieces of Google's error messages that point to the project or the caller."""


def preview_stacks(
    names: Sequence[str], out: Path, *, create: bool, hide_secrets: bool = False
) -> Sequence[StackPreview]:
    """Preview stacks in sequence and store each result in `out`. A failed preview is also a result.

    With `create`, a stack that is not in the backend is previewed as a new one, in a temporary backend. The real backend is not written to, so
    read access is sufficient. With `hide_secrets`, the engine decrypts nothing.

    Raises CommandRefusedError if a stack has no settings file.
    """
    known = runner.require_stacks(names)
    runner.pulumi()  # fails early without an engine
    previews: list[StackPreview] = []
    for name in names or known:
        previews.append(_preview(name, create=create, hide=hide_secrets))
        write(out, previews[-1])
    return previews


def _preview(stack: str, *, create: bool, hide: bool) -> StackPreview:
    """Return the preview of one stack, or the engine's error."""
    say("preview", f"{stack} ...")
    started_s = time.monotonic()
    usd_per_hour = _usd_per_hour(stack)
    result = StackPreview(stack=stack, usd_per_hour=usd_per_hour, simulated=is_simulated(), without_secrets=hide)
    try:
        changes = _previewed(stack, create=create, hide=hide)
    except ScriptError as error:
        changes = {"error": masked(str(error))}
    return result.model_copy(update={**changes, "elapsed_s": round(time.monotonic() - started_s, 1)})


def _previewed(stack: str, *, create: bool, hide: bool) -> dict[str, object]:
    """Return the fields of a preview, with stand-ins for every secret if `hide` is set. Raises ScriptError with the engine's error message."""
    try:
        with contextlib.ExitStack() as held:
            if hide:
                held.enter_context(frozen_here(stack))
            is_known = held.enter_context((without_secrets if hide else selected_or_new)(stack, create=create))
            changes, unchanged, warnings = changes_of(preview(stack), environment_secrets())
    except PreviewFailedError as failed:
        raise ScriptError(_with_hint(stack, str(failed))) from None
    return {"changes": changes, "unchanged": unchanged, "warnings": warnings, "new_stack": not is_known}


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
