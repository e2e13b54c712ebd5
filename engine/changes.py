"""Changes of an engine preview: one entry per resource, with the values before and after."""

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from contracts.fields import as_mapping, as_sequence
from engine.previewed import diagnostics, steps_in
from engine.stack import STACK_TYPE
from engine.steps import ShownChange, shown_changes, takes_server_away

_SHOWN: Final = frozenset({"create", "update", "delete", "replace", "read"})


class ResourceChange(BaseModel):
    """A resource that will change."""

    model_config = ConfigDict(frozen=True)
    op: str = Field(description="Operation: create, update, replace, delete or read.")
    type: str = Field(description="Type of the resource.")
    name: str = Field(description="Name of the resource in the program.")
    properties: tuple[str, ...] = Field(default=(), description="Top-level properties that differ.")
    forced_by: tuple[str, ...] = Field(default=(), description="Properties that force a replacement.")
    changes: tuple[ShownChange, ...] = Field(
        default=(), description="Differences with the values before and after, without secrets and shortened."
    )
    changes_left_out: int = Field(default=0, description="Number of differences not listed in `changes`.")

    @property
    def is_disruptive(self) -> bool:
        """True if it replaces or deletes the serving resource."""
        return takes_server_away(self.op, self.type)


def changes_of(
    preview: Mapping[str, object], secrets: Sequence[str] = ()
) -> tuple[tuple[ResourceChange, ...], int, tuple[str, ...]]:
    """Return a preview's changes without secrets, the number of unchanged resources, and the warnings.

    The preview can be one with `--refresh`.
    """
    changes = tuple(
        _change(step, secrets) for step in steps_in(preview) if step.get("op") in _SHOWN and _type(step) != STACK_TYPE
    )
    warnings = tuple(text.removeprefix("warning:").strip() for text in diagnostics(preview, "warning"))
    unchanged = as_mapping(preview.get("changeSummary")).get("same")
    return changes, unchanged if isinstance(unchanged, int) else 0, warnings


def _type(step: Mapping[str, object]) -> str:
    state = as_mapping(step.get("newState")) or as_mapping(step.get("oldState"))
    return str(state.get("type") or "")


def _change(step: Mapping[str, object], secrets: Sequence[str]) -> ResourceChange:
    op = str(step.get("op"))
    differs = op != "create" and bool(step.get("newState"))
    changes, rest = shown_changes(step, secrets) if differs else ((), 0)
    return ResourceChange(
        op=op,
        type=_type(step),
        name=str(step.get("urn") or "").rpartition("::")[2],
        properties=tuple(map(str, as_sequence(step.get("diffReasons")))),
        forced_by=tuple(map(str, as_sequence(step.get("replaceReasons")))),
        changes=tuple(changes),
        changes_left_out=rest,
    )
