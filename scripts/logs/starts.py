"""The first start of a TPU VM or of a Cloud Run revision by phase, from its log, next to the planned one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from gemma_serving.cloud.google_api import GoogleListError, connect
from gemma_serving.cloud.server_logs import ServerLine
from gemma_serving.contracts.answers import Unknown
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.guest_attributes import COMPILING, FAILED, RESTORING, RETRYING
from gemma_serving.contracts.log_phases import phase_in
from gemma_serving.contracts.machine_log import AGENT_SOURCE
from gemma_serving.contracts.stack_facts import StackFacts
from gemma_serving.scripts.logs.place import ServerLog
from gemma_serving.scripts.logs.reading import PHASE_LINE, SERVES, oldest_lines

_NO_DOCUMENT: Final = "(none)"
"""Document in the agent's first line after a boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStart:
    """A start that is over, next to the plan."""

    planned_s: float
    planned_phases_s: Mapping[str, float]
    """Image and process, weights, and compilation with warm-up."""
    measured_s: float | None = None
    """From the creation of the revision, or the agent's first line, to vLLM's last line of a start; None if the log was not read."""
    phases_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Empty if the log does not show where each one begins, or if the start was repeated."""
    unread: str = ""
    """Why the log was not read."""

    @property
    def text(self) -> str:
        """The start in one line."""
        if self.measured_s is None:
            return f"unknown, planned {self.planned_s:.0f} s; its log was not read: {self.unread}"
        phases = [f"{name} {span_s:.0f} ({self.planned_phases_s[name]:.0f})" for name, span_s in self.phases_s.items()]
        return f"{self.measured_s:.0f} s, planned {self.planned_s:.0f}: {', '.join(phases) or 'phases unknown'}"


def first_start(facts: StackFacts) -> MeasuredStart | None:
    """Return the first start of the server that Google reports.

    None if it is not over, if the log does not have it, or if a TPU VM serves another document since.
    """
    outputs, cloud, server = facts.deployed, facts.cloud, facts.recorded
    if outputs is None or server is None:
        return None
    plan = outputs.plan.startup
    # Weights that are fetched while the image is pulled are in the total once.
    weights_s = round(plan.total_s - plan.pull_s - plan.compile_s, 1)
    phases = {"image": plan.pull_s, "weights": weights_s, "compile": plan.compile_s}
    start = MeasuredStart(planned_s=plan.total_s, planned_phases_s=phases)
    if cloud is None or cloud.running is None:
        return replace(start, unread=facts.server.why) if isinstance(facts.server, Unknown) else None
    log = ServerLog(stack=facts.stack, project=outputs.project, target=outputs.target, location=outputs.location)
    since = str(cloud.state_since)
    try:
        api = connect(outputs.project)
        if outputs.target == "cloud-run":
            since = str(api.get("run", f"v2/{server.names[0]}/revisions/{cloud.running}").get("createTime"))
        began = datetime.fromisoformat(since)
        lines = oldest_lines(api, log, began)
    except (ScriptError, GoogleListError, ValueError) as error:
        return replace(start, unread=str(error))
    where = cloud.running
    if outputs.target == "tpu":
        published = [(line, found["document"]) for line in lines if (found := _published(line)) is not None]
        boot = next((line for line, document in published if document == _NO_DOCUMENT), None)
        of_node = (document for line, document in published if boot is not None and line.where == boot.where)
        first = next((document for document in of_node if document != _NO_DOCUMENT), None)
        if boot is None or first is None or not cloud.running.startswith(first):
            return None
        where, began = boot.where, boot.moment
    return _measured(start, [line for line in lines if line.where == where], began)


def _published(line: ServerLine) -> re.Match[str] | None:
    return PHASE_LINE.fullmatch(line.text) if line.source == AGENT_SOURCE else None


def _measured(start: MeasuredStart, lines: Sequence[ServerLine], began: datetime) -> MeasuredStart | None:
    """Return the start with what its lines show, oldest first; None if it is not over."""
    phase, marks = "", {"image": began}
    for line in lines:
        if SERVES in line.text:
            ends = [*marks.values(), line.moment][1:]
            spans = zip(marks.items(), ends, strict=True)
            found = {name: round((end - at).total_seconds(), 3) for (name, at), end in spans}
            is_whole = [*found] == [*start.planned_phases_s]
            measured_s = round((line.moment - began).total_seconds(), 3)
            return replace(start, measured_s=measured_s, phases_s=found if is_whole else {})
        published = _published(line)
        if published is not None and published["phase"] in {FAILED, RETRYING, RESTORING}:
            marks[published["phase"]] = line.moment
        elif line.source != AGENT_SOURCE and (shown := phase_in(line.text, phase)):
            phase = shown
            marks.setdefault("compile" if shown == COMPILING else "weights", line.moment)
    return None
