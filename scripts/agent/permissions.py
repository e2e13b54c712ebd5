"""Permissions and tools that the user who started the server chose. No model output changes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from contracts.errors import CommandRefusedError

ANSWER_WITHIN_S: Final = 45.0
"""Time after which a longer call returns a handle. The TypeScript SDK limits a call to 60 s by default."""
LONGEST_WAIT_S: Final = 600.0
"""Maximum duration of one call of `wait`."""
Change = Literal["up", "smoke", "bench", "stage", "rollout", "restart", "recover", "teardown"]
CHANGES: Final[Sequence[Change]] = get_args(Change)
MEANINGS: Final[Mapping[Change, str]] = {
    "up": "deploy a plan created by `preview`",
    "smoke": "send the requests of the smoke checks, which can start an instance",
    "bench": "send load to a server",
    "stage": "copy weights to a new folder of the stack's bucket, and create the bucket according to its plan",
    "rollout": "shift the traffic of a Cloud Run service, or roll it back, as shown in a dry run",
    "restart": "restart a deployed server without changing its settings, as shown in a dry run",
    "recover": "import resources of an interrupted run into the state, as shown in a dry run",
    "teardown": "delete a stack, each time after the user typed its name and a code",
}
"""Meaning of every permission."""


TOOLSETS: Final[Mapping[str, Sequence[str]]] = {
    "plan": ("plan", "compare_machines", "solve", "explain_finding", "prices"),
    "status": ("doctor", "capacity", "status", "alerts", "endpoint", "metrics", "list_weights"),
    "logs": ("logs", "recognise_failure"),
    "measure": ("ask", "smoke", "benchmark", "compare_benchmarks", "wait", "cancel"),
    "deploy": ("preview", "up", "stage_weights", "rollout", "restart", "recover", "wait", "cancel"),
    "delete": ("teardown", "wait", "cancel"),
}
"""Groups of tools. Detached work needs the two tools that wait for it and stop it."""
_TOOL_OF: Final[Mapping[Change, str]] = {"bench": "benchmark", "stage": "stage_weights"}
"""Tools whose name differs from their permission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Allowed changes. Without any, every tool is read-only."""

    allowed: frozenset[Change] = frozenset()

    def allows(self, change: Change) -> bool:
        """Return whether the change is allowed."""
        return change in self.allowed


def parse_permissions(text: str) -> Permissions:
    """Parse `up,rollout`. Raises CommandRefusedError for an unknown word."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in CHANGES]
    if unknown:
        raise CommandRefusedError(f"--allow has {unknown[0]!r}. Use a list of {', '.join(CHANGES)}.")
    return Permissions(allowed=frozenset(cast("Sequence[Change]", words)))


def parse_toolsets(text: str, permissions: Permissions) -> frozenset[str] | None:
    """Parse `plan,logs` and return the names of its tools; None for an empty text, which means all.

    Raises CommandRefusedError for an unknown word, and for a permission whose tool is missing.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in TOOLSETS]
    if unknown:
        raise CommandRefusedError(f"--toolsets has {unknown[0]!r}. Use a list of {', '.join(TOOLSETS)}.")
    if not words:
        return None
    tools = frozenset(tool for word in words for tool in TOOLSETS[word])
    for change in CHANGES:
        tool = _TOOL_OF.get(change, change)
        if permissions.allows(change) and tool not in tools:
            needed = next(name for name, group in TOOLSETS.items() if tool in group)
            raise CommandRefusedError(
                f"--allow has {change}, but --toolsets omits its tool {tool}. Add {needed} to --toolsets or remove "
                f"{change} from --allow."
            )
    return tools


def toolsets_table() -> str:
    """Return the tools of each word of --toolsets, in Markdown."""
    rows = [f"| `{name}` | {', '.join(f'`{tool}`' for tool in tools)} |" for name, tools in TOOLSETS.items()]
    return "\n".join(["| `--toolsets` | tools |", "| --- | --- |", *rows]) + "\n"


def permissions_table() -> str:
    """Return the meaning of each word of --allow, in Markdown."""
    rows = [f"| `{change}` | {MEANINGS[change]} |" for change in CHANGES]
    return "\n".join(["| `--allow` | permission |", "| --- | --- |", *rows]) + "\n"
