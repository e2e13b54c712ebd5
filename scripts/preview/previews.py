"""Preview stacks with the Pulumi engine."""

import contextlib
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.masking import masked
from gemma_serving.engine import runner
from gemma_serving.engine.previewed import preview, selected_or_new
from gemma_serving.engine.state import read
from gemma_serving.engine.steps import ResourceChange, changes_of
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.cli.hidden import environment_secrets
from gemma_serving.scripts.preview.without_secrets import without_secrets
from gemma_serving.scripts.stack.facts import read_facts
from gemma_serving.scripts.stack.frozen import frozen_here
from gemma_serving.scripts.stack.serves import GOOGLE_LIMIT_S, differs, moved_traffic


class StackPreview(BaseModel):
    """Preview of one stack."""

    model_config = ConfigDict(frozen=True)
    stack: str
    changes: tuple[ResourceChange, ...] = ()
    unchanged: int = 0
    """Number of resources without a change."""
    differences: tuple[str, ...] = ()
    """What Google has otherwise than the state, one sentence each."""
    error: str | None = None
    """Why the preview failed."""
    simulated: bool = False
    new_stack: bool = False
    """The stack is not in the backend, so the engine had no state to compare with."""
    without_secrets: bool = False
    """Every secret was replaced by a placeholder."""


def preview_stacks(names: Sequence[str], *, hide_secrets: bool) -> Sequence[StackPreview]:
    """Preview stacks in sequence. A failed preview is a result too.

    A stack that the backend does not know is previewed in a temporary one.
    With `hide_secrets`, the engine decrypts nothing.
    """
    runner.pulumi()  # fails early without an engine
    return [_preview(name, hide=hide_secrets) for name in names]


def _preview(stack: str, *, hide: bool) -> StackPreview:
    """Return the preview of one stack, or the engine's error."""
    print_progress("preview", f"{stack} ...")
    found = StackPreview(stack=stack, simulated=is_simulated(), without_secrets=hide)
    try:
        with contextlib.ExitStack() as held:
            if hide:
                held.enter_context(frozen_here(stack))
            differences: Sequence[str] = ()
            moved = ""
            if not hide:  # a refresh would read the values of secrets
                differences, moved = _compared(stack)
            is_known = held.enter_context((without_secrets if hide else selected_or_new)(stack))
            refresh = ["--refresh"] if differences else []
            changes, unchanged, _ = changes_of(preview(stack, *refresh), environment_secrets())
            engine = {"changes": changes, "unchanged": unchanged, "new_stack": not is_known}
            return found.model_copy(update={**engine, "differences": tuple(filter(None, (*differences, moved)))})
    except ScriptError as error:
        return found.model_copy(update={"error": masked(str(error))})


def _compared(stack: str) -> tuple[Sequence[str], str]:
    """Return why the engine must compare the state with Google first, and what it leaves as it is."""
    facts = read_facts(read(stack), "server", "lost", limit_s=GOOGLE_LIMIT_S)
    return differs(facts), moved_traffic(facts)
