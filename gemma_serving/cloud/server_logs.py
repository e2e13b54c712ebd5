"""Read the log lines of a server, its agent and Cloud Run from Cloud Logging."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from gcp_tpu_provider import refusals
from gemma_serving.cloud.google_calls import call
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.machine_log import SOURCE_LABEL

if TYPE_CHECKING:
    from gemma_serving.cloud.google_api import GoogleApi

_METHOD: Final = "v2/entries:list"
_SYSTEM: Final = "system"
_REFUSED: Final = 400

Entry: TypeAlias = Mapping[str, object]
Mask: TypeAlias = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLine:
    """One line of the server, its agent or Cloud Run."""

    moment: datetime
    source: str
    """`server`, `agent`, `stdout`, `stderr` or `system` (Cloud Run's own)."""
    where: str
    """Revision or node; empty if the entry does not name it."""
    text: str

    def masked(self, mask: Mask) -> "ServerLine":
        """Return the line with secrets redacted."""
        return replace(self, text=mask(self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """A search in the log of a project."""

    project: str
    filter: str
    order: Literal["timestamp asc", "timestamp desc"] = "timestamp desc"
    page_size: int

    def body(self, token: str = "") -> Mapping[str, object]:
        """Return the body of the request for a page."""
        body = {"resourceNames": [f"projects/{self.project}"], "filter": self.filter, "orderBy": self.order}
        return {**body, "pageSize": self.page_size, **({"pageToken": token} if token else {})}


def service_filter(service: str, location: str, *terms: str) -> str:
    """Return the filter for the own log lines of a service's revisions and Cloud Run's system lines, with more terms."""
    of_service = (
        'resource.type="cloud_run_revision"',
        f'resource.labels.service_name="{service}"',
        f'resource.labels.location="{location}"',
        'logName:"run.googleapis.com"',
    )
    return " AND ".join((*of_service, *terms))


def entries(api: "GoogleApi", query: LogQuery) -> Iterator[Entry]:
    """Yield the entries of all pages. Raises GoogleListError, ScriptError."""
    token = ""
    while True:
        page = api.post("logging", _METHOD, query.body(token))
        yield from _log_entries(page)
        token = str(page.get("nextPageToken") or "")
        if not token:
            return


async def newest_page(query: LogQuery, *, limit_s: float) -> Sequence[ServerLine]:
    """Return the lines of the newest page, oldest first. Raises GoogleCallError, even after `limit_s` seconds."""
    page = await call("logging", _METHOD, project=query.project, body=query.body(), limit_s=limit_s)
    return [line for entry in reversed(_log_entries(page)) for line in lines_of(entry)]


def _log_entries(page: Mapping[str, object]) -> Sequence[Entry]:
    return cast("Sequence[Entry]", page.get("entries") or ())


def lines_of(entry: Entry) -> Sequence[ServerLine]:
    """Return the lines of an entry: several for a traceback, none for a request log."""
    log = str(entry.get("logName") or "").rpartition("%2F")[2]
    texts = [" ".join(_text(entry).split())] if log == _SYSTEM else _text(entry).splitlines()
    place = as_mapping(as_mapping(entry.get("resource")).get("labels"))
    line = ServerLine(
        moment=moment_of(entry),
        source=str(as_mapping(entry.get("labels")).get(SOURCE_LABEL) or log),
        where=str(place.get("revision_name") or place.get("node_id") or ""),
        text="",
    )
    return [replace(line, text=text.rstrip()) for text in texts if text.strip()]


def moment_of(entry: Entry) -> datetime:
    """Return the time of an entry."""
    return datetime.fromisoformat(str(entry.get("timestamp"))).astimezone(UTC)


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


def _text(entry: Entry) -> str:
    if "textPayload" in entry:
        return str(entry["textPayload"])
    payload = as_mapping(entry.get("jsonPayload"))
    return str(payload.get("message") or (json.dumps(payload) if payload else ""))
