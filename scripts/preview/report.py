"""Engine previews of stacks, as data."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from engine.changes import ResourceChange
from scripts.preview.plans import PlansDocument

_REPLACING = frozenset({"replace", "create-replacement"})


class StackPreview(BaseModel):
    """Preview of one stack. `error` is set if it failed; `usd_per_hour` is the planned price, None without a plan.

    `new_stack`: the stack is not in the backend, so the engine had no state to compare with. `without_secrets`: every secret was a stand-in.
    `against_base`: `changes` are the differences between a new deployment of this checkout and one of the base. `base_error` is the reason if
    the base could not be previewed; `changes` are then a whole deployment. `skipped`: plan and settings are the base's, so the engine did not run.
    `losses`: operation and URN of each step that replaces or deletes a resource.
    """

    model_config = ConfigDict(frozen=True)
    stack: str
    changes: tuple[ResourceChange, ...] = ()
    losses: tuple[str, ...] = ()
    unchanged: int = 0
    warnings: tuple[str, ...] = ()
    error: str | None = None
    usd_per_hour: float | None = None
    simulated: bool = False
    new_stack: bool = False
    without_secrets: bool = False
    against_base: bool = False
    base_error: str | None = None
    skipped: bool = False
    elapsed_s: float = Field(default=0.0)

    @property
    def replacements(self) -> tuple[ResourceChange, ...]:
        """Resources that will be replaced."""
        return tuple(change for change in self.changes if change.op in _REPLACING)


def write(folder: Path, preview: StackPreview) -> Path:
    """Store a stack's preview as a file for a later step."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{preview.stack}.json"
    path.write_text(preview.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def read_all(folder: Path) -> Sequence[StackPreview]:
    """Return the previews stored by `write`."""
    return [
        StackPreview.model_validate_json(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))
    ]


def report(previews: Sequence[StackPreview], base: PlansDocument | None, head: PlansDocument) -> str:
    """Return the previews and the plans of both commits as one JSON object. `base` is null if no commit was compared."""
    body: Mapping[str, object] = {
        "previews": [preview.model_dump() for preview in previews],
        "base": base.model_dump() if base else None,
        "head": head.model_dump(),
    }
    return json.dumps(body) + "\n"
