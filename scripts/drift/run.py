"""Detect changes in the cloud since the last deployment with a refresh preview. Changes neither the cloud nor the state."""

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
"""Identifies the issue so that it can be updated."""
TITLE: Final = "Drift in deployed stacks"
_LIMIT_S: Final = 900.0
_MOST_BYTES: Final = 60_000
_WORDS: Final[Mapping[str, str]] = {"update": "changed", "delete": "deleted", "replace": "replaced", "create": "new"}


class StackDrift(BaseModel):
    """Differences in one stack. `error` is set if it could not be read. A stack that is not deployed has none."""

    model_config = ConfigDict(frozen=True)
    stack: str
    deployed: bool = True
    changes: tuple[ResourceChange, ...] = ()
    error: str | None = None
    rollout_phase: RolloutPhase | None = None
    """Phase of a Cloud Run service's rollout; None without `cloudRun.rollout` or if it could not be read."""
    rollout: str = ""
    """Status of the rollout and the command to run, in whole sentences."""

    @property
    def differs(self) -> bool:
        """True if the operator must act. An active rollout or a waiting revision is not a difference."""
        return bool(self.changes or self.error) or self.rollout_phase in {"interrupted", "unknown"}


def drift_of(stack: str) -> StackDrift:
    """Return the differences between a stack's state and the cloud."""
    say("drift", f"{stack} ...")
    try:
        if stack not in runner.listed_stacks():
            return StackDrift(stack=stack, deployed=False)
        return _compared(stack, _refreshed(stack))
    except ScriptError as error:
        return StackDrift(stack=stack, error=masked(str(error)))


def drift_of_all(names: Sequence[str]) -> Sequence[StackDrift]:
    """Return the differences of these stacks, by default of all with a settings file."""
    return [drift_of(stack) for stack in names or runner.stacks_in(runner.project_folder())]


def issue_body(found: Sequence[StackDrift], run_url: str) -> str | None:
    """Return the text of the issue; None if every stack could be read and none differs."""
    differing = [one for one in found if one.differs]
    if not differing:
        return None
    lines = [
        MARKER,
        "The cloud differs from the last deployment.",
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
            lines += ["", f"To restore the deployment, run {code(f'pulumi up --refresh --stack {one.stack}')}."]
    lines += [
        "",
        f"<sub>Updated every night, and closed when the drift is gone. [Latest run]({run_url})</sub>",
    ]
    text = "\n".join(lines)
    if len(text.encode()) > _MOST_BYTES:
        table = "\n".join(lines[: 5 + len(differing)])
        text = f"{table}\n\nThe list is too long for an issue. See the [latest run]({run_url})."
    return text + "\n"


def _line(change: ResourceChange) -> str:
    names = f": {', '.join(code(name) for name in change.properties)}" if change.properties else ""
    return f"- {code(change.name)} ({code(change.type)}) is {_WORDS.get(change.op, change.op)}{names}"


def _compared(stack: str, preview: Mapping[str, object]) -> StackDrift:
    """Return the differences in a refresh preview, which has the service as Google returned it."""
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
