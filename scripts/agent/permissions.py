"""Permissions and tools that the user who started the server chose. No model output changes them."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast, get_args

from gemma_serving.contracts.errors import CommandRefusedError

ANSWER_WITHIN_S: Final = 45.0
"""Time after which a longer call returns a handle. The TypeScript SDK limits a call to 60 s by default."""
LONGEST_WAIT_S: Final = 600.0
TOTAL_HOURS: Final = 24.0
"""Hours of the limit per hour that a server may spend in all, unless its user sets the total."""
OWN_HOURS: Final = 4.0
"""Hours of a service that no guard limits: as of a TPU run of this repository."""
Change = Literal["up", "ask", "smoke", "bench", "stage", "scale", "restart", "teardown"]
CHANGES: Final[Sequence[Change]] = get_args(Change)

TOOLSETS: Final[Mapping[str, Sequence[str]]] = {
    "plan": ("plan", "prices"),
    "status": ("doctor", "capacity", "status", "alerts", "list_weights"),
    "logs": ("logs",),
    "measure": ("ask", "smoke", "bench", "compare", "wait", "cancel"),
    "deploy": ("preview", "up", "stage_weights", "wait", "cancel"),
    "delete": ("teardown", "wait", "cancel"),
}
"""Groups of tools. Detached work needs the two tools that wait for it and stop it."""


def _words(option: str, text: str, known: Sequence[str]) -> Sequence[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in known]
    if unknown:
        raise CommandRefusedError(f"{option} has {unknown[0]!r}. Use a list of {', '.join(known)}.")
    return words


def parse_permissions(text: str) -> frozenset[Change]:
    """Parse `up,smoke`. Raises CommandRefusedError for an unknown word."""
    return frozenset(cast("Sequence[Change]", _words("--allow", text, CHANGES)))


def parse_toolsets(text: str) -> frozenset[str] | None:
    """Parse `plan,logs` and return the names of its tools; None for an empty text, which means all.

    Raises CommandRefusedError for an unknown word.
    """
    words = _words("--toolsets", text, tuple(TOOLSETS))
    return frozenset(tool for word in words for tool in TOOLSETS[word]) if words else None
