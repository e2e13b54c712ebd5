"""Permission to import: `up` continues the runs of this folder by itself, asks about all others, and refuses these without a terminal."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from gemma_serving.cloud.google_api import connect
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.engine.backend import file_text
from gemma_serving.engine.exported_state import back_up, write_empty
from gemma_serving.engine.locks import past_dead_locks
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.cli.prompts import confirm
from gemma_serving.scripts.stack.labelled import require_name, servers_in, without_state
from gemma_serving.scripts.stack.own_runs import is_own, remember_run
from gemma_serving.scripts.stack.unfinished_teardown import is_unfinished
from gemma_serving.scripts.up.importing import Document, Examination, import_all

_DECLINED: Final = "Cancelled. Nothing was changed."


def import_missing(
    stack: str, project: str, document: Document, *, preview: Callable[[], Document], name: str = "up"
) -> Document:
    """Import what Google has of a stack and its state lacks, as far as this folder may. Return the last preview.

    `preview`: makes another one. `name`: the command that imports. Raises CommandRefusedError before a change, and ScriptError.
    """
    return import_all(
        stack,
        connect(project),
        document,
        preview=preview,
        confirm=partial(may_import, stack, name=name),
        report=partial(print_progress, name),
    )


def may_import(stack: str, lacking: Examination, *, name: str = "up") -> None:
    """Say what the state of a stack lacks, and ask unless this folder made it. Raises CommandRefusedError if it may not be imported."""
    _ask(stack, f"{lacking.sentence} `{name}` imports what it lacks.", has_server=lacking.has_server, name=name)


def _ask(stack: str, sentence: str, *, has_server: bool, name: str = "up") -> None:
    print_progress(name, sentence)
    if is_own(stack, has_server=has_server):
        return
    confirm(
        f"Import it into the state of stack {stack}?",
        without_terminal=f"Another folder may have made it. To import it, run `gemma {name} {stack}` in a terminal. Nothing was changed.",
        declined=_DECLINED,
    )
    remember_run(stack, "begun")  # asked once: what follows is this folder's


def may_take_over(stack: str, found: Sequence[FoundResource], *, unread: str = "", dry_run: bool = False) -> None:
    """Ask before `up` takes over a stack of which the backend has no state, unless this folder lost it. Raises CommandRefusedError."""
    require_name(stack)
    if is_own(stack, has_server=bool(servers_in(found))) or is_unfinished(stack):
        return
    print_progress("up", without_state(stack, found, unread))
    if dry_run:
        return
    confirm(
        f"Take over stack {stack}, with a new state in this backend?",
        without_terminal=f"To use the state that it has, run `pulumi login` with its backend. To take the stack over into this one, run `gemma up {stack}` "
        "in a terminal. Nothing was changed.",
        declined=_DECLINED,
    )
    remember_run(stack, "begun")


def replace_cut_off(state: StackState) -> None:
    """Replace a state that was cut off by an empty one, with a copy, after a question unless this folder began it. Raises ScriptError."""
    stack, proof = state.stack, state.proof_of_loss
    if proof is None or not state.is_cut_off:
        return
    cut_off = f"The state of stack {stack} was cut off by an interrupted write. `up` imports what Google has of it into an empty one."
    _ask(stack, cut_off, has_server=True)
    if before := file_text(stack):
        print_progress("up", f"copied the previous state to {back_up(stack, before)}")
    past_dead_locks(stack, lambda: write_empty(stack, proof), report=partial(print_progress, "up"))
