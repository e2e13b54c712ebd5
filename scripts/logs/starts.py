"""The first start of a TPU VM or of a Cloud Run revision by phase, from its log, next to the planned one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from gemma_serving.cloud.google_api import GoogleListError, connect
from gemma_serving.cloud.server_logs import ServerLine
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.guest_attributes import COMPILING, FAILED, RESTORING, RETRYING
from gemma_serving.contracts.log_phases import phase_in
from gemma_serving.contracts.machine_log import AGENT_SOURCE
from gemma_serving.contracts.outputs import StartupSummary
from gemma_serving.contracts.stack_facts import StackFacts
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
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
    measured_s: float
    """From the creation of the revision, or the agent's first line, to vLLM's last line of a start."""
    phases_s: Mapping[str, float]
    """Empty if the log does not show where each one begins, or if the start was repeated."""

    @property
    def text(self) -> str:
        """The start in one line."""
        phases = [f"{name} {span_s:.0f} ({self.planned_phases_s[name]:.0f})" for name, span_s in self.phases_s.items()]
        return f"{self.measured_s:.0f} s, planned {self.planned_s:.0f}: {', '.join(phases) or 'phases unknown'}"


def start_text(start: Answer[MeasuredStart]) -> str:
    """Return a start in one line, or why its log was not read; empty without one."""
    match start:
        case Present(value=measured):
            return measured.text
        case Unknown(why=why):
            return f"unknown; its log was not read: {why}"
        case Absent():
            return ""


def start_json(start: Answer[MeasuredStart]) -> Mapping[str, object] | None:
    """Return a start in JSON types, or `unknown` with the reason; None without one."""
    match start:
        case Present(value=measured):
            return asdict(measured)
        case Unknown(why=why):
            return {"unknown": why}
        case Absent():
            return None


def first_start(facts: StackFacts) -> Answer[MeasuredStart]:
    """Return the first start of the server that Google reports, by its log.

    Absent if it is not over, if the log does not have it, or if a TPU VM serves another document since.
    """
    outputs, cloud, server = facts.deployed, facts.cloud, facts.recorded
    if outputs is None or server is None:
        return Absent()
    if cloud is None or cloud.running is None:
        return facts.server if isinstance(facts.server, Unknown) else Absent()
    log = ServerLog(stack=facts.stack, project=outputs.project, target=outputs.target, location=outputs.location)
    since = str(cloud.state_since)
    try:
        api = connect(outputs.project)
        if outputs.target == "cloud-run":
            since = str(api.get("run", f"v2/{server.names[0]}/revisions/{cloud.running}").get("createTime"))
        began = datetime.fromisoformat(since)
        lines = oldest_lines(api, log, began)
    except (ScriptError, GoogleListError, ValueError) as error:
        return Unknown(str(error))
    where = cloud.running
    if outputs.target == "tpu":
        published = [(line, found["document"]) for line in lines if (found := _published(line)) is not None]
        boot = next((line for line, document in published if document == _NO_DOCUMENT), None)
        of_node = (document for line, document in published if boot is not None and line.where == boot.where)
        first = next((document for document in of_node if document != _NO_DOCUMENT), None)
        if boot is None or first is None or not cloud.running.startswith(first):
            return Absent()
        where, began = boot.where, boot.moment
    return _measured(outputs.plan.startup, [line for line in lines if line.where == where], began)


def _published(line: ServerLine) -> re.Match[str] | None:
    return PHASE_LINE.fullmatch(line.text) if line.source == AGENT_SOURCE else None


def _measured(plan: StartupSummary, lines: Sequence[ServerLine], began: datetime) -> Answer[MeasuredStart]:
    """Return the start that its lines show, oldest first; Absent if it is not over."""
    # Weights that are fetched while the image is pulled are in the total once.
    weights_s = round(plan.total_s - plan.pull_s - plan.compile_s, 1)
    planned = {"image": plan.pull_s, "weights": weights_s, "compile": plan.compile_s}
    phase, marks = "", {"image": began}
    for line in lines:
        if SERVES in line.text:
            ends = [*marks.values(), line.moment][1:]
            spans = zip(marks.items(), ends, strict=True)
            found = {name: round((end - at).total_seconds(), 3) for (name, at), end in spans}
            measured = MeasuredStart(
                planned_s=plan.total_s,
                planned_phases_s=planned,
                measured_s=round((line.moment - began).total_seconds(), 3),
                phases_s=found if [*found] == [*planned] else {},
            )
            return Present(measured, source="the server's log", read_at=line.moment)
        published = _published(line)
        if published is not None and published["phase"] in {FAILED, RETRYING, RESTORING}:
            marks[published["phase"]] = line.moment
        elif line.source != AGENT_SOURCE and (shown := phase_in(line.text, phase)):
            phase = shown
            marks.setdefault("compile" if shown == COMPILING else "weights", line.moment)
    return Absent()
