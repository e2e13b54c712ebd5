"""Check of a component's arguments, before it declares a resource."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass

import pulumi

from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.settings.annotations import HasProblems
from gemma_serving.planning.settings.fields import check_block


def argument(path: str) -> str:
    """Return the name of an argument in a message."""
    return f"`{path}`"


class InvalidArgumentError(PlanningError, pulumi.RunError):
    """An argument of a component is invalid: one sentence with its name, its value, what is allowed, and what to do.

    The engine prints a RunError without a traceback.
    """


def require_valid(component: str, args: HasProblems, blocks: Mapping[str, HasProblems]) -> None:
    """Raise InvalidArgumentError for the first invalid argument of a component.

    `blocks` are its arguments that are blocks of settings, by name. Their limits are those of a settings file.
    """
    try:
        for name, block in blocks.items():
            _require_complete(block, name)
            check_block(block, name, in_python=True)
        problem = next(args.problems(), None)
    except PlanningError as error:
        raise InvalidArgumentError(f"{component}: {error}") from None
    if problem is not None:
        raise InvalidArgumentError(f"{component}: {problem}.")


def _require_complete(block: HasProblems, name: str) -> None:
    """Raise PlanningError for a required field without a value. A question of the planner may leave it empty; a component may not."""
    for field in fields(block) if is_dataclass(block) else ():
        value: object = getattr(block, field.name)
        is_required = field.default is MISSING and field.default_factory is MISSING
        if is_required and not value:
            raise PlanningError(f"`{name}.{field.name}` is {value!r}, but it is required. Set it.")
