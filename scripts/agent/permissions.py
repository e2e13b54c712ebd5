"""What the person who started the server allowed it to do, and which tools it offers. Nothing that a model says changes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from contracts.errors import CommandRefusedError

Change = Literal["up", "smoke", "bench", "stage", "rollout", "recover", "teardown"]
CHANGES: Final[Sequence[Change]] = get_args(Change)
MEANINGS: Final[Mapping[Change, str]] = {
    "up": "deploy a plan that `preview` made",
    "smoke": "send the smoke checks' requests, which can start an instance",
    "bench": "load a server",
    "stage": "copy weights into a new folder of the stack's bucket, and create the bucket after its plan",
    "rollout": "shift the traffic of a Cloud Run service, also back, as a dry run showed it",
    "recover": "take what an interrupted run made into the state, as a dry run showed it",
    "teardown": "delete a stack, each time after a person typed its name and a code",
}
"""Every permission and what it allows."""


TOOLSETS: Final[Mapping[str, Sequence[str]]] = {
    "plan": ("plan", "compare_machines", "solve", "explain_finding"),
    "status": ("doctor", "capacity", "status", "endpoint", "metrics", "list_weights"),
    "logs": ("logs", "recognise_failure"),
    "measure": ("ask", "smoke", "benchmark", "compare_benchmarks", "wait", "cancel"),
    "deploy": ("preview", "up", "stage_weights", "rollout", "recover", "wait", "cancel"),
    "delete": ("teardown", "wait", "cancel"),
}
"""Groups of tools; work that was left needs the two that wait for it and stop it. A tool that is not allowed is in none that a client sees."""
_TOOL_OF: Final[Mapping[Change, str]] = {"bench": "benchmark", "stage": "stage_weights"}
"""The tool of a change that has another name."""


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


def parse_toolsets(text: str, permissions: Permissions) -> frozenset[str] | None:
    """Read `plan,logs` and return the names of its tools; None for an empty text, which means all.

    Raises CommandRefusedError for a word that is none, and for a permission whose tool would not be there.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in TOOLSETS]
    if unknown:
        raise CommandRefusedError(f"--toolsets has {unknown[0]!r}; it takes a list of {', '.join(TOOLSETS)}.")
    if not words:
        return None
    tools = frozenset(tool for word in words for tool in TOOLSETS[word])
    for change in CHANGES:
        tool = _TOOL_OF.get(change, change)
        if permissions.allows(change) and tool not in tools:
            needed = next(name for name, group in TOOLSETS.items() if tool in group)
            raise CommandRefusedError(
                f"--allow has {change}, but --toolsets leaves its tool {tool} out; add {needed} to --toolsets, or take "
                f"{change} out of --allow."
            )
    return tools


def toolsets_table() -> str:
    """Return the tools of each word of --toolsets, in Markdown."""
    rows = [f"| `{name}` | {', '.join(f'`{tool}`' for tool in tools)} |" for name, tools in TOOLSETS.items()]
    return "\n".join(["| `--toolsets` | tools |", "| --- | --- |", *rows]) + "\n"


def permissions_table() -> str:
    """Return what each word of --allow allows, in Markdown."""
    rows = [f"| `{change}` | {MEANINGS[change]} |" for change in CHANGES]
    return "\n".join(["| `--allow` | what it may then do |", "| --- | --- |", *rows]) + "\n"
