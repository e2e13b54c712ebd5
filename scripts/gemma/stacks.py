"""Which stack a command is about: the word that names it, else the selected one, else the only one that is deployed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import as_mapping
from contracts.spelling import did_you_mean, meant
from engine import runner


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStack:
    """One stack of the backend."""

    name: str
    is_selected: bool
    resources: int
    """-1 if the backend has an update of the stack but no count."""


def listed(*, limit_s: float = runner.QUERY_LIMIT_S) -> Sequence[ListedStack]:
    """Return the stacks of the project that the backend knows. Raises ScriptError if the engine cannot list them within `limit_s` seconds."""
    stacks = cast("list[Any]", json.loads(runner.query(["stack", "ls", "--json"], limit_s=limit_s)))
    return [_listed(as_mapping(one)) for one in stacks]


def _listed(stack: Any) -> ListedStack:  # noqa: ANN401 - JSON of the engine
    count = stack.get("resourceCount")
    return ListedStack(
        name=str(stack.get("name")).rpartition("/")[2],
        is_selected=stack.get("current") is True,
        resources=count if isinstance(count, int) else -1 if stack.get("lastUpdate") else 0,
    )


def default_stack(command: str) -> tuple[str, str]:
    """Return the stack that is meant where none is named, and why: `selected`, or `the only one deployed`.

    Raises CommandRefusedError if neither exists.
    """
    stacks = listed()
    for stack in stacks:
        if stack.is_selected:
            return stack.name, "selected"
    deployed = [stack.name for stack in stacks if stack.resources != 0]
    if len(deployed) == 1:
        return deployed[0], "the only one deployed"
    several = f"Deployed: {', '.join(deployed)}." if deployed else "No stack is deployed."
    raise CommandRefusedError(f"No stack named and none selected. {several} Run `gemma {command} STACK`.")


def require_known(word: str) -> None:
    """Raise CommandRefusedError for a word that names no stack of the settings files or of the backend."""
    with_settings = runner.stacks_in(runner.project_folder())
    if word in with_settings:
        return
    try:
        deployed = runner.listed_stacks()
    except ScriptError:
        if not meant(word, with_settings):
            raise
        deployed = frozenset[str]()  # the backend cannot be read, and the word is close to a stack with settings
    known = sorted({*with_settings, *deployed})
    if word not in known:
        raise CommandRefusedError(
            f"Stack {word} not found.{did_you_mean(word, known) or ' Stacks: ' + (', '.join(known) or 'none') + '.'} "
            "Run `gemma new` to create the settings of a new one."
        )
