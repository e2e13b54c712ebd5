"""What the person who started the server allowed it to do. Nothing that a model says changes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from scripts.errors import CommandRefusedError

Change = Literal["up", "smoke", "bench", "stage", "rollout", "recover", "teardown"]
CHANGES: Final[Sequence[Change]] = get_args(Change)
MEANINGS: Final[Mapping[Change, str]] = {
    "up": "deploy a plan that `preview` made",
    "smoke": "send the smoke checks' requests, which can start an instance",
    "bench": "load a server",
    "stage": "copy weights into the stack's bucket",
    "rollout": "shift the traffic of a Cloud Run service, also back",
    "recover": "take what an interrupted run made into the state",
    "teardown": "delete a stack, each time after a person typed its name",
}
"""Every permission and what it allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What is allowed. Without any, every tool only reads."""

    allowed: frozenset[Change] = frozenset()

    def allows(self, change: Change) -> bool:
        """Whether the change is allowed."""
        return change in self.allowed


def parse_permissions(text: str) -> Permissions:
    """Read `up,rollout`. Raises CommandRefusedError for a word that is none."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in CHANGES]
    if unknown:
        raise CommandRefusedError(f"--allow has {unknown[0]!r}; it takes a list of {', '.join(CHANGES)}.")
    return Permissions(allowed=frozenset(cast("Sequence[Change]", words)))


def permissions_table() -> str:
    """Return what each word of --allow allows, in Markdown."""
    rows = [f"| `{change}` | {MEANINGS[change]} |" for change in CHANGES]
    return "\n".join(["| `--allow` | what it may then do |", "| --- | --- |", *rows]) + "\n"
