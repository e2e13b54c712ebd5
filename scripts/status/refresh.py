"""Compare every resource of a stack with Google, by the engine's preview of a refresh. Nothing is changed."""

from collections.abc import Mapping, Sequence
from typing import Final

from engine.previewed import previewed, steps_in

_SAME: Final = frozenset({"same", "read", "refresh"})
_OPERATIONS: Final[Mapping[str, str]] = {
    "create": "would be created",
    "update": "would be changed",
    "delete": "would be deleted",
    "replace": "would be replaced",
    "create-replacement": "would be replaced",
    "delete-replaced": "would be replaced",
}


def refreshed_drift(stack: str) -> Sequence[str]:
    """Return what the next `pulumi up --refresh` would change, each a sentence. Raises ScriptError if the preview fails."""
    return _sentences(previewed(stack, "--refresh"))


def _sentences(preview: Mapping[str, object]) -> Sequence[str]:
    found: dict[str, str] = {}
    for step in steps_in(preview):
        operation, urn = str(step.get("op") or ""), str(step.get("urn") or "")
        if operation not in _SAME and urn:
            found[urn] = _OPERATIONS.get(operation, operation)
    return [
        f"{urn.rpartition('::')[2]} ({urn.split('::')[-2].rpartition('$')[2]}) {word}." for urn, word in found.items()
    ]
