"""Compare every resource of a stack with Google Cloud through a refresh preview. Read-only."""

from collections.abc import Mapping, Sequence
from typing import Final

from engine.previewed import previewed, steps_in

_SAME: Final = frozenset({"same", "read", "refresh"})
_OPERATIONS: Final[Mapping[str, str]] = {
    "create": "will be created",
    "update": "will be changed",
    "delete": "will be deleted",
    "replace": "will be replaced",
    "create-replacement": "will be replaced",
    "delete-replaced": "will be replaced",
}


def refreshed_drift(stack: str) -> Sequence[str]:
    """Return the changes of the next `pulumi up --refresh`, one sentence each. Raises ScriptError if the preview fails."""
    return _sentences(previewed(stack, "--refresh"))


def _sentences(preview: Mapping[str, object]) -> Sequence[str]:
    found: dict[str, str] = {}
    for step in steps_in(preview):
        operation, urn = str(step.get("op") or ""), str(step.get("urn") or "")
        if operation not in _SAME and urn:
            found[urn] = _OPERATIONS.get(operation, operation)
    return [
        f"{urn.rpartition('::')[2]} ({urn.split('::')[-2].rpartition('$')[2]}) {change}."
        for urn, change in found.items()
    ]
