"""Arguments of components: their classes, their default owner, and their check before a resource is declared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, dataclass_transform

import pulumi

from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.masking import masked
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.settings import text
from gemma_serving.planning.settings.annotations import MAY_BE_OUTPUT
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.reading import check_arguments, problem_with
from gemma_serving.planning.settings.words import AfterValidator

T = TypeVar("T")
if TYPE_CHECKING:
    Input: TypeAlias = pulumi.Input[T]
else:
    Input = Annotated[T, MAY_BE_OUTPUT]  # its value is checked if it is known
Labels: TypeAlias = Annotated[Mapping[text.LabelKey, Input[text.LabelValue]], text.NOT_RESERVED]
"""Labels whose values may be outputs."""


def argument(path: str) -> str:
    """Return the name of an argument in a message."""
    return f"`{path}`"


class InvalidArgumentError(PlanningError, pulumi.RunError):
    """An argument of a component is invalid: one sentence with its name, its value, what is allowed, and what to do.

    The engine prints a RunError without a traceback.
    """


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def arguments(owner: type[T]) -> type[T]:
    """Return a class of arguments: frozen data with keywords only, whose call without a required one raises InvalidArgumentError."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(owner)
    require_names(made)
    return made


def require_names(owner: type[Any]) -> None:
    """Let a call of a dataclass raise InvalidArgumentError, not Python's TypeError, for a missing or an unknown argument."""
    construct: Callable[..., None] = owner.__init__

    @wraps(construct)
    def checked(*given: object, **named: object) -> None:
        try:
            construct(*given, **named)
        except TypeError as error:
            raise InvalidArgumentError(f"{owner.__name__} {str(error).partition('() ')[2]}.") from None

    owner.__init__ = checked


def require_valid(component: str, args: object, kind: type[Block]) -> None:
    """Raise InvalidArgumentError for the first invalid argument of a component, whose arguments are of class `kind`, and of its blocks."""
    if not isinstance(args, kind):
        raise InvalidArgumentError(f"{component}: its arguments are a {type(args).__name__}; expected {kind.__name__}.")
    try:
        check_arguments(args)
    except PlanningError as error:
        raise InvalidArgumentError(masked(f"{component}: {error}")) from None


def program_ownership() -> Ownership:
    """Return the Pulumi project and stack of the running program."""
    return Ownership(project=pulumi.get_project(), stack=pulumi.get_stack())


def _of_labels(owner: Ownership) -> Ownership:
    for name in (owner.project, owner.stack):
        problem = problem_with(text.LabelValue, name)
        if problem is not None:
            advice = "Pass `ownership=Ownership(project=..., stack=...)` of contracts.labels"
            raise ValueError(f'"{name}" cannot be the value of a label: {problem}. {advice}')
    return owner


Owner: TypeAlias = Annotated[Ownership, AfterValidator(_of_labels)]
"""Owner whose names can be the values of labels."""
