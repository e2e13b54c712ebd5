"""Previews of stacks by the engine, as data."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from engine.steps import ShownChange, shown_changes
from scripts.preview.plans import PlansDocument

_REPLACING = frozenset({"replace", "create-replacement"})
_SHOWN = frozenset({"create", "update", "delete", "replace", "read"})


class _State(BaseModel):
    type: str
    inputs: Mapping[str, object] | None = None
    outputs: Mapping[str, object] | None = None


class _Step(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore")
    op: str
    urn: str
    new_state: _State | None = None
    old_state: _State | None = None
    diff_reasons: tuple[str, ...] | None = None
    replace_reasons: tuple[str, ...] | None = None
    detailed_diff: Mapping[str, object] | None = None


class _Diagnostic(BaseModel):
    model_config = ConfigDict(extra="ignore")
    severity: str
    message: str


class EnginePreview(BaseModel):
    """The part of `pulumi preview --json` that the comment uses."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore")
    steps: tuple[_Step, ...] | None = None
    diagnostics: tuple[_Diagnostic, ...] | None = None
    change_summary: dict[str, int] | None = None

    def outputs_of(self, kind: str) -> Mapping[str, object]:
        """Return the outputs of the first resource of a type, as they are after the steps; empty if there is none."""
        states = [step.new_state for step in self.steps or () if step.new_state is not None]
        return next((state.outputs or {} for state in states if state.type == kind), dict[str, object]())


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


class StackPreview(BaseModel):
    """One stack's preview. `error` is set if it failed; `usd_per_hour` is the planned price, None without a plan.

    `new_stack`: the backend does not know the stack, so that the engine compared with nothing. `without_secrets`: every secret was a stand-in.
    """

    model_config = ConfigDict(frozen=True)
    stack: str
    changes: tuple[ResourceChange, ...] = ()
    unchanged: int = 0
    warnings: tuple[str, ...] = ()
    error: str | None = None
    usd_per_hour: float | None = None
    simulated: bool = False
    new_stack: bool = False
    without_secrets: bool = False
    elapsed_s: float = Field(default=0.0)

    @property
    def replacements(self) -> tuple[ResourceChange, ...]:
        """Resources that would be replaced."""
        return tuple(change for change in self.changes if change.op in _REPLACING)


def from_engine(
    preview: EnginePreview, secrets: Sequence[str] = ()
) -> tuple[tuple[ResourceChange, ...], int, tuple[str, ...]]:
    """Return the changes without these secrets, the number of unchanged resources and the warnings of an engine's preview."""
    changes = tuple(
        _change(step, secrets)
        for step in preview.steps or ()
        if step.op in _SHOWN and _type(step) != "pulumi:pulumi:Stack"
    )
    warnings = tuple(
        d.message.removeprefix("warning:").strip() for d in preview.diagnostics or () if d.severity == "warning"
    )
    return changes, (preview.change_summary or {}).get("same", 0), warnings


def write(folder: Path, preview: StackPreview) -> Path:
    """Store a stack's preview as a file for a later step."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{preview.stack}.json"
    path.write_text(preview.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def read_all(folder: Path) -> Sequence[StackPreview]:
    """Return the previews that `write` stored."""
    return [
        StackPreview.model_validate_json(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))
    ]


def report(previews: Sequence[StackPreview], base: PlansDocument | None, head: PlansDocument) -> str:
    """Return the previews and the plans of both commits as one JSON object. `base` is null without a commit to compare with."""
    body: Mapping[str, object] = {
        "previews": [preview.model_dump() for preview in previews],
        "base": base.model_dump() if base else None,
        "head": head.model_dump(),
    }
    return json.dumps(body) + "\n"


def _type(step: _Step) -> str:
    state = step.new_state or step.old_state
    return state.type if state else ""


def _change(step: _Step, secrets: Sequence[str]) -> ResourceChange:
    differs = step.op != "create" and step.new_state is not None
    changes, rest = shown_changes(step.model_dump(mode="json", by_alias=True), secrets) if differs else ((), 0)
    return ResourceChange(
        op=step.op,
        type=_type(step),
        name=step.urn.rpartition("::")[2],
        properties=step.diff_reasons or (),
        forced_by=step.replace_reasons or (),
        changes=tuple(changes),
        changes_left_out=rest,
    )
