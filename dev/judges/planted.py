"""Planted lies: claims that are known to be wrong. A judge that accepts one proves nothing, so each run offers the judge its lie first."""

from collections.abc import Callable, Iterable

from gemma_serving.contracts.errors import ScriptError


class PlantedLieError(ScriptError):
    """A judge accepted a claim that is known to be wrong."""


def refuse_planted(lie: str, judge: Callable[[], bool | Iterable[object] | None]) -> None:
    """Require that a judge refuses a lie. Raises PlantedLieError.

    `judge` refuses by a failed assertion, or by what it returns: True or any fault. A text is a note about what agrees, so it accepts.
    """
    try:
        found = judge()
    except AssertionError:
        return
    if found is None or isinstance(found, str) or not (found if isinstance(found, bool) else list(found)):
        raise PlantedLieError(f"the judge accepted a planted lie: {lie}.")
