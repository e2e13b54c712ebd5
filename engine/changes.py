"""What a preview of the engine changes, as data for people and programs: one entry a resource, with the values before and after."""

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from contracts.fields import as_mapping, as_sequence
from engine.previewed import diagnostics, steps_in
from engine.stack import STACK_TYPE
from engine.steps import ShownChange, shown_changes, takes_server_away

_SHOWN: Final = frozenset({"create", "update", "delete", "replace", "read"})


class ResourceChange(BaseModel):
    """One resource that would change. `properties` differ, and `forced_by` are the properties that force a replacement."""

    model_config = ConfigDict(frozen=True)
    op: str = Field(description="Operation: create, update, replace, delete or read.")
    type: str = Field(description="Type of the resource.")
    name: str = Field(description="Name of the resource in the program.")
    properties: tuple[str, ...] = Field(default=(), description="Top-level properties that differ.")
    forced_by: tuple[str, ...] = Field(default=(), description="Properties that force a replacement.")
    changes: tuple[ShownChange, ...] = Field(
        default=(), description="What differs, with the value before and after, without secrets and shortened."
    )
    changes_left_out: int = Field(default=0, description="Number of differences that `changes` leaves out.")

    @property
    def is_disruptive(self) -> bool:
        """Whether it replaces or deletes what serves."""
        return takes_server_away(self.op, self.type)


def changes_of(
    preview: Mapping[str, object], secrets: Sequence[str] = ()
) -> tuple[tuple[ResourceChange, ...], int, tuple[str, ...]]:
    """Return the changes without these secrets, the number of unchanged resources and the warnings of an engine's preview."""
    changes = tuple(
        _change(step, secrets) for step in steps_in(preview) if step.get("op") in _SHOWN and _type(step) != STACK_TYPE
    )
    warnings = tuple(text.removeprefix("warning:").strip() for text in diagnostics(preview, "warning"))
    unchanged = as_mapping(preview.get("changeSummary")).get("same")
    return changes, unchanged if isinstance(unchanged, int) else 0, warnings


def outputs_after(preview: Mapping[str, object], kind: str) -> Mapping[str, object]:
    """Return the outputs of the first resource of a type, as they are after the steps of a preview; empty if there is none."""
    states = [as_mapping(step.get("newState")) for step in steps_in(preview)]
    return next(
        (as_mapping(state.get("outputs")) for state in states if state.get("type") == kind), dict[str, object]()
    )


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
