"""Limits in hours that an assistant's server enforced at an earlier commit. Their records are named once, then removed."""

from collections.abc import Iterator

from gemma_serving.contracts.naming import NamingError, check_stack_name
from gemma_serving.engine.backend import memory

_LIMIT = "limit-"


def forget_limit(stack: str) -> None:
    """Remove the record of a stack's limit, if there is one. A process that still enforces it then exits."""
    memory().remove(f"{_LIMIT}{stack}.json")


def old_limits(stack: str | None = None) -> Iterator[str]:
    """Remove the record of each limit, or of one stack's, and yield a sentence about it."""
    for name in memory().stacks(_LIMIT):
        try:
            check_stack_name(name)
        except NamingError:
            continue
        if stack in {None, name} and memory().read(f"{_LIMIT}{name}.json") is not None:
            forget_limit(name)
            yield (
                f"An assistant deployed stack {name} with a limit in hours, which nothing enforces any more. "
                f"To delete the stack, run `gemma teardown {name}`."
            )
