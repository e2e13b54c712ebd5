"""Ask the engine what changed in the cloud since the last deployment. Nothing is changed, not even the state."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from pydantic import BaseModel, ConfigDict

from contracts.errors import ScriptError
from contracts.fields import as_mapping
from contracts.masking import masked
from contracts.outputs import DETAILS_TYPE
from contracts.resource_types import SERVICE_TYPE
from contracts.service_traffic import TEMPLATE_LABEL
from engine import runner
from engine.changes import ResourceChange, changes_of, outputs_after
from engine.previewed import PreviewFailedError, read_preview
from scripts.cli.command import say
from scripts.cli.hidden import environment_secrets
from scripts.cli.markdown import code, fenced, row
from stacks.hooks.rollout_state import RolloutPhase, view_of

MARKER: Final = "<!-- gemma-serving: drift -->"
"""Identifies the issue, so that it can be updated."""
TITLE: Final = "Deployed stacks differ from what was deployed"
_LIMIT_S: Final = 900.0
_MOST_BYTES: Final = 60_000
_WORDS: Final[Mapping[str, str]] = {"update": "changed", "delete": "gone", "replace": "replaced", "create": "new"}


class StackDrift(BaseModel):
    """What differs in one stack. `error` is set if it could not be read; a stack that is not deployed has nothing."""

    model_config = ConfigDict(frozen=True)
    stack: str
    deployed: bool = True
    changes: tuple[ResourceChange, ...] = ()
    error: str | None = None
    rollout_phase: RolloutPhase | None = None
    """Where the roll-out of a Cloud Run service is; None without `cloudRun.rollout`, or if it could not be read."""
    rollout: str = ""
    """What to know of the roll-out and what to run, whole sentences."""

    @property
    def differs(self) -> bool:
        """Whether a person has something to do. A roll-out that goes on, or a revision that waits, is no difference."""
        return bool(self.changes or self.error) or self.rollout_phase in {"interrupted", "unknown"}


def drift_of(stack: str) -> StackDrift:
    """Return what differs between a stack's state and the cloud."""
    say("drift", f"{stack} ...")
    try:
        if stack not in runner.listed_stacks():
            return StackDrift(stack=stack, deployed=False)
        return _compared(stack, _refreshed(stack))
    except ScriptError as error:
        return StackDrift(stack=stack, error=masked(str(error)))


def drift_of_all(names: Sequence[str]) -> Sequence[StackDrift]:
    """Return what differs in these stacks, by default in all with a settings file."""
    return [drift_of(stack) for stack in names or runner.stacks_in(runner.project_folder())]


def issue_body(found: Sequence[StackDrift], run_url: str) -> str | None:
    """Return the issue's text; None if nothing differs and every stack could be read."""
    differing = [one for one in found if one.differs]
    if not differing:
        return None
    lines = [
        MARKER,
        "What is in the cloud is not what was deployed.",
        "",
        row(("stack", "differences")),
        "| --- | --- |",
    ]
    lines += [row((code(one.stack), "could not be read" if one.error else str(len(one.changes)))) for one in differing]
    for one in differing:
        lines += ["", f"#### {code(one.stack)}", ""]
        if one.error:
            lines += fenced(one.error[:4000])
            continue
        if one.rollout:
            lines += [one.rollout, ""]
        if one.changes:
            lines += [_line(change) for change in one.changes]
            lines += ["", f"To deploy what the state says again: {code(f'pulumi up --refresh --stack {one.stack}')}."]
    lines += [
        "",
        f"<sub>This issue is updated each night and closed when nothing differs. [Latest run]({run_url})</sub>",
    ]
    text = "\n".join(lines)
    if len(text.encode()) > _MOST_BYTES:
        table = "\n".join(lines[: 5 + len(differing)])
        text = f"{table}\n\nThe list is too long for an issue; the [latest run]({run_url}) has it."
    return text + "\n"


def _line(change: ResourceChange) -> str:
    what = f": {', '.join(code(name) for name in change.properties)}" if change.properties else ""
    return f"- {code(change.name)} ({code(change.type)}) is {_WORDS.get(change.op, change.op)}{what}"


def _compared(stack: str, preview: Mapping[str, object]) -> StackDrift:
    """Return what a preview of a refresh says of a stack. Its service is as Google answered."""
    changes, service = changes_of(preview, environment_secrets())[0], outputs_after(preview, SERVICE_TYPE)
    if TEMPLATE_LABEL not in as_mapping(service.get("labels")):
        return StackDrift(stack=stack, changes=changes)
    is_fixed = as_mapping(outputs_after(preview, DETAILS_TYPE).get("rollout")).get("traffic") is not None
    view = view_of(service, stack, datetime.now(UTC), fixed=is_fixed)
    return StackDrift(stack=stack, changes=changes, rollout_phase=view.phase, rollout=masked(view.sentence))


def _refreshed(stack: str) -> Mapping[str, object]:
    answer = runner.run("refresh", "--preview-only", "--json", "--stack", stack, limit_s=_LIMIT_S)
    try:
        return read_preview(answer)
    except PreviewFailedError as failed:
        raise ScriptError(failed.reasons[0]) from None
