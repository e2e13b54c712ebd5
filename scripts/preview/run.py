"""Preview stacks with the engine."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

from pydantic import ValidationError

from cloud.simulated import is_simulated
from contracts.errors import CommandRefusedError, ScriptError
from contracts.masking import masked
from engine import runner
from engine.previewed import NO_STACK, scratch_backend
from engine.secrets_provider import provider_options
from scripts.cli.command import say
from scripts.cli.hidden import environment_secrets
from scripts.cli.settings import stack_settings
from scripts.preview.plans import UNKNOWN_PROJECT, stacks_in
from scripts.preview.report import EnginePreview, StackPreview, from_engine, write
from scripts.preview.saved import frozen_here
from scripts.preview.without_secrets import without_secrets

PREVIEW_LIMIT_S = 600.0
_REFUSAL = re.compile(r"\b403\b|PERMISSION_DENIED|has not been used in project")
"""Words of Google's in an error that is about the project or the caller."""


def preview_stacks(
    names: Sequence[str], out: Path, *, create: bool, hide_secrets: bool = False
) -> Sequence[StackPreview]:
    """Preview stacks one after the other and store each result in `out`. A failed preview is a result too.

    With `create`, a stack that the backend does not know is previewed as a new one, in a backend of its own that is deleted: nothing is
    written to the real backend, so that the right to read is enough. With `hide_secrets` the engine decrypts nothing either.

    Raises CommandRefusedError if a stack has no settings file.
    """
    known = all_stacks()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CommandRefusedError(
            f"There is no Pulumi.{unknown[0]}.yaml; the stacks with settings here are: {', '.join(known)}."
        )
    runner.pulumi()  # refuses to begin without an engine
    previews: list[StackPreview] = []
    for name in names or known:
        previews.append(_preview(name, create=create, hide=hide_secrets))
        write(out, previews[-1])
    return previews


def all_stacks() -> Sequence[str]:
    """Return the stacks that have a settings file, sorted. Raises CommandRefusedError if there are none."""
    names = stacks_in(runner.project_folder())
    if not names:
        raise CommandRefusedError("There is no Pulumi.<stack>.yaml here.")
    return names


def _preview(stack: str, *, create: bool, hide: bool) -> StackPreview:
    """Return the preview of one stack, or the engine's error."""
    say("preview", f"{stack} ...")
    started_s = time.monotonic()
    usd_per_hour = _usd_per_hour(stack)
    result = StackPreview(stack=stack, usd_per_hour=usd_per_hour, simulated=is_simulated(), without_secrets=hide)
    try:
        changes = _previewed_without_secrets(stack, create=create) if hide else _previewed(stack, create=create)
    except ScriptError as error:
        changes = {"error": masked(str(error))}
    return result.model_copy(update={**changes, "elapsed_s": round(time.monotonic() - started_s, 1)})


def _previewed(stack: str, *, create: bool) -> dict[str, object]:
    """Return the fields of a preview. Raises ScriptError with the engine's own words."""
    chosen = runner.run("stack", "select", stack, limit_s=PREVIEW_LIMIT_S)
    if chosen.returncode == 0:
        return _asked(stack)
    if not create or NO_STACK not in chosen.stderr + chosen.stdout:
        raise ScriptError(_error(stack, chosen, None))
    with scratch_backend(stack):
        made = runner.run("stack", "init", stack, *provider_options(stack), limit_s=PREVIEW_LIMIT_S)
        if made.returncode != 0:
            raise ScriptError(_error(stack, made, None))
        return {**_asked(stack), "new_stack": True}


def _previewed_without_secrets(stack: str, *, create: bool) -> dict[str, object]:
    """Return the fields of a preview in which every secret is a stand-in. Raises ScriptError with the engine's own words."""
    with frozen_here(stack), without_secrets(stack, create=create) as is_known:
        return {**_asked(stack), "new_stack": not is_known}


def _asked(stack: str) -> dict[str, object]:
    answer = runner.run("preview", "--json", "--stack", stack, limit_s=PREVIEW_LIMIT_S)
    try:
        parsed = EnginePreview.model_validate_json(answer.stdout)
    except ValidationError:
        parsed = None
    if answer.returncode != 0 or parsed is None:
        raise ScriptError(_error(stack, answer, parsed))
    changes, unchanged, warnings = from_engine(parsed, environment_secrets())
    return {"changes": changes, "unchanged": unchanged, "warnings": warnings}


def _error(stack: str, answer: CompletedProcess[str], parsed: EnginePreview | None) -> str:
    said = [d.message.strip() for d in (parsed.diagnostics if parsed else None) or () if d.severity == "error"]
    text = "\n".join(runner.reasons(said)) or runner.error_of(answer)
    if _REFUSAL.search(text) is None:
        return text
    from stacks.planned import doctor_hint  # noqa: PLC0415 - only a refusal needs it

    return f"{text}\n{doctor_hint(stack)}"


def _usd_per_hour(stack: str) -> float | None:
    """Return the planned cost, or None if the settings are wrong: the preview tells the reason."""
    from planning import PlanningError, plan  # noqa: PLC0415 - only after the engine is known to be there
    from stacks.planned import to_deployment  # noqa: PLC0415 - the same

    try:
        return plan(to_deployment(stack_settings(stack, project=UNKNOWN_PROJECT))).cost.usd_per_hour
    except (CommandRefusedError, PlanningError):
        return None
