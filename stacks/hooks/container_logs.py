"""Read the last log lines of a Cloud Run revision's container from Cloud Logging."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, cast

from gcp_tpu_provider import refusals
from gemma_serving.cloud.clock import real_s
from gemma_serving.cloud.google_calls import GoogleCallError, call

LIMIT_S: Final = 15.0
"""Maximum wait for the log. Entries become listable some seconds after they are written."""
_PAUSE_S: Final = 2.0
_LEAST_PATIENCE_S: Final = 1.0
"""Minimum wait in real seconds, because a simulation's clock does not make this machine faster."""
_NEWEST: Final = 300
"""Entries to read. vLLM's tracebacks are long, and the cause is at their start."""
_SYSTEM: Final = "system"
_REFUSED: Final = 400
_END: Final = re.compile(r"Container called exit|terminated on signal|probe failed \d+ time|mount operation failed")
"""Cloud Run's final messages about an instance that did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionLog:
    """The log entries of one revision, or of all revisions since a time."""

    project: str
    location: str
    service: str
    revision: str | None = None
    """Name of the revision; None for all."""
    since: str = ""
    """RFC 3339 time of the oldest entry, for all revisions."""

    @property
    def filter(self) -> str:
        """Filter for the revision's own log lines and Cloud Run's system lines."""
        terms = [
            'resource.type="cloud_run_revision"',
            f'resource.labels.service_name="{self.service}"',
            f'resource.labels.location="{self.location}"',
            f'resource.labels.revision_name="{self.revision}"' if self.revision else f'timestamp>="{self.since}"',
            'logName:"run.googleapis.com"',
        ]
        return " AND ".join(terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLine:
    """One line and its source: `stdout`, `stderr` or `system` (Cloud Run)."""

    source: str
    text: str


async def last_lines(log: RevisionLog) -> Sequence[ContainerLine]:
    """Return the newest lines, oldest first. Waits up to LIMIT_S for Cloud Run's final message.

    Raises GoogleCallError if the log cannot be read at all.
    """
    started_s = monotonic()
    patience_s = max(real_s(LIMIT_S), _LEAST_PATIENCE_S)
    found: Sequence[ContainerLine] = ()
    while True:
        try:
            newer = await _listed(log, limit_s=started_s + LIMIT_S - monotonic())
        except GoogleCallError:
            if found:
                return found
            raise
        complete = len(newer) == len(found) and any(_END.search(line.text) for line in newer)
        found = newer
        pause_s = real_s(_PAUSE_S)
        if complete or monotonic() - started_s + pause_s >= patience_s:
            return found
        await asyncio.sleep(pause_s)


async def _listed(log: RevisionLog, limit_s: float) -> Sequence[ContainerLine]:
    body = {
        "resourceNames": [f"projects/{log.project}"],
        "filter": log.filter,
        "orderBy": "timestamp desc",
        "pageSize": _NEWEST,
    }
    answer = await call("logging", "v2/entries:list", project=log.project, body=body, limit_s=limit_s)
    entries = cast("Sequence[Mapping[str, object]]", answer.get("entries") or ())
    return [line for entry in reversed(entries) for line in lines_of(entry)]


def lines_of(entry: Mapping[str, object]) -> Sequence[ContainerLine]:
    """Return the lines of an entry. A traceback is one entry with several."""
    source, text = str(entry.get("logName") or "").rpartition("%2F")[2], _text(entry)
    texts = [" ".join(text.split())] if source == _SYSTEM else text.splitlines()
    return [ContainerLine(source=source, text=line.rstrip()) for line in texts if line.strip()]


def why_unread(project: str, *, status: int, reason: str, said: str) -> str:
    """Return why a log cannot be read, and the command that grants access. `said` is Google's message."""
    meaning = refusals.read(said, reason).meaning
    if meaning == refusals.API_OFF:
        return f"the Cloud Logging API is off. Run `gcloud services enable logging.googleapis.com --project={project}`."
    if meaning in refusals.DENIED:
        member = '--member="user:$(gcloud config get account)"'
        grant = (
            f"gcloud projects add-iam-policy-binding {project} {member} --role=roles/logging.viewer --condition=None"
        )
        return f"{said} You need logging.logEntries.list. Run `{grant}`."
    return refusals.said(said, reason, project=project, consumer=project) if status >= _REFUSED else said


def _text(entry: Mapping[str, object]) -> str:
    if "textPayload" in entry:
        return str(entry["textPayload"])
    payload = cast("Mapping[str, object]", entry.get("jsonPayload") or {})
    return str(payload.get("message") or (json.dumps(payload) if payload else ""))
