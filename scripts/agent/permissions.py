"""Permissions that the user who started the server chose. No model output changes them."""

from collections.abc import Sequence
from typing import Final, Literal, cast, get_args

from gemma_serving.contracts.errors import CommandRefusedError

ANSWER_WITHIN_S: Final = 45.0
"""Time after which a longer call returns a handle. The TypeScript SDK limits a call to 60 s by default."""
LONGEST_WAIT_S: Final = 600.0
Change = Literal["up", "ask", "smoke", "bench", "stage", "scale", "restart", "teardown"]
CHANGES: Final[Sequence[Change]] = get_args(Change)


def parse_permissions(text: str) -> frozenset[Change]:
    """Parse `up,smoke`. Raises CommandRefusedError for an unknown word."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in CHANGES]
    if unknown:
        raise CommandRefusedError(f"--allow has {unknown[0]!r}. Use a list of {', '.join(CHANGES)}.")
    return frozenset(cast("Sequence[Change]", words))
