"""Meaning of Google's refusals, by the table in refusals.json: about the project, with the command that fixes it, or about one zone.

A row has words of a public source and the pattern that knows them. The first row whose pattern is in the words, or whose `reason` Google names
(google.rpc.ErrorInfo, or `errors` of Compute Engine and Cloud Storage), decides. `code` is the HTTP status, a google.rpc.Code below 100, or 0.
A meaning says whether to stop, because every zone refuses the same, or after a second zone's same words, and has the sentence for the user.
Its command is said only if every name in it is known.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from gcp_tpu_provider.errors import GoogleError, ProjectError

QUOTA: Final = "quota"
STOCK: Final = "stock"
NOT_OFFERED: Final = "not offered here"
UNKNOWN: Final = "unknown"
UNKNOWN_WORDS: Final = "unknown words"
API_OFF: Final = "API off"
OTHER_API_OFF: Final = "other API off"
QUOTA_PROJECT: Final = "quota project"
ACCOUNT_MISSING: Final = "account missing"
ROLE_MISSING: Final = "role missing"
AGENT_MISSING: Final = "agent missing"
EXISTS: Final = "exists"
CONFLICT: Final = "conflict"
IMAGE: Final = "image"
UPSTREAM: Final = "upstream"
SECRET_MISSING: Final = "secret missing"  # noqa: S105 - a meaning
SECRET_ACCESS: Final = "secret access"  # noqa: S105 - as above
PERMISSION: Final = "permission"
ACT_AS: Final = "act as"
DENIED: Final = frozenset({PERMISSION, ACT_AS, "access denied"})
"""The caller lacks a permission, or may lack one: Google does not show what the caller must not see."""
_EXPIRED: Final = "expired"
"""A request whose time ended at Google, which names no cause."""
_TEMPORARY: Final = frozenset({API_OFF, ACT_AS, "calls per minute"})
_NAME: Final = re.compile(r"{(\w+)}")
_REGION: Final = re.compile(r"quota .* in region (?P<region>[a-z0-9-]+)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Meaning of Google's words."""

    meaning: str
    """A key of `meanings` in refusals.json; UNKNOWN_WORDS if no row knows the words."""
    sentence: str = ""
    """Sentence of the row, if it has one of its own."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values that the words name, such as `permission`, `account` or, if it may pass, `what`."""

    @property
    def stops(self) -> bool:
        """True if each zone refuses the same, so that no other one is tried."""
        return _table()["meanings"][self.meaning]["then"] == "stop"

    @property
    def is_repeated(self) -> bool:
        """True if the same words of a second zone, which name no zone, are about the project, the caller or the request."""
        return _table()["meanings"][self.meaning]["then"] == "ask twice"

    def advice(self, **names: str) -> str:
        """Return the cause and the fix. `names`: the project and what Google names beside its words."""
        meaning = _table()["meanings"][self.meaning]
        known = {**names, **self.names}
        if role := _table()["roles"].get(known.get("permission", "").partition(".")[0]):
            known["role"] = role
        text = (self.sentence or meaning["sentence"]).format_map({**_table()["unnamed"], **known})
        command = "" if self.sentence else meaning.get("command", "")
        return f"{text}{command.format_map(known)}" if {*_NAME.findall(command)} <= {*known} else text


@cache
def _table() -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", json.loads(Path(__file__).with_name("refusals.json").read_text(encoding="utf-8")))


@cache
def rows() -> Sequence[tuple[re.Pattern[str], Mapping[str, Any]]]:
    """Return the rows of the table, each with its pattern."""
    return [(re.compile(row["pattern"], re.DOTALL), row) for row in _table()["rows"]]


def meanings() -> Sequence[str]:
    """Return all meanings, in the order in which a table explains them."""
    return list(_table()["meanings"])


def read(words: str, reason: str = "") -> Refusal:
    """Return what Google's words and its reason mean."""
    for pattern, row in rows():
        found = pattern.search(words)
        if found is not None or (reason and row.get("reason") == reason):
            named = found.groupdict() if found else {}
            names = {**row.get("names", {}), **{name: text.strip() for name, text in named.items() if text}}
            return Refusal(meaning=row["meaning"], sentence=row.get("sentence", ""), names=names)
    return Refusal(meaning=UNKNOWN_WORDS)


def advice(words: str, reason: str = "", **names: str) -> str:
    """Return what to say beside Google's words: that they are new, or the cause and fix if every call is refused the same.

    Empty for the other meanings, of which the caller knows more, such as the role that it lacks.
    """
    found = read(words, reason)
    is_said = found.meaning == UNKNOWN_WORDS or (found.stops and found.meaning not in DENIED)
    return f"{found.advice(**names)}." if is_said else ""


def said(words: str, reason: str = "", **names: str) -> str:
    """Return Google's words with `advice`, as sentences."""
    return f"{words.rstrip('.')}. {advice(words, reason, **names)}".rstrip()


def kind(answer: str) -> str:
    """Return why a zone did not grant capacity: a meaning of the table. For a request that expired, Google names no cause."""
    meaning = read(answer).meaning
    return UNKNOWN if meaning == _EXPIRED else meaning


def has_expired(answer: str) -> bool:
    """Return whether Google's words say only that the time of a request ended before capacity was granted."""
    return read(answer).meaning == _EXPIRED


def region_without_quota(answer: str) -> str | None:
    """Return the region whose quota does not suffice according to Google's words; None if they name none."""
    found = _REGION.search(answer) if kind(answer) == QUOTA else None
    return None if found is None else found["region"]


def is_temporary(error: GoogleError) -> bool:
    """Return whether a refusal may pass: an API was just enabled, an account was just created, or too many calls were made."""
    return read(error.message, error.reason).meaning in _TEMPORARY


def about_the_project(error: GoogleError, project: str, metadata: Mapping[str, str]) -> GoogleError:
    """Return a ProjectError for a refusal that applies to every zone, or the error itself. `metadata`: of google.rpc.ErrorInfo."""
    permission = metadata.get("permission", "")
    found = read(f"{error.message} Permission '{permission}' denied" if permission else error.message, error.reason)
    if not found.stops or (found.meaning == PERMISSION and "permission" not in found.names):
        return error
    consumer = metadata.get("consumer", "").removeprefix("projects/")
    given = {"service": metadata.get("service") or "tpu.googleapis.com", "consumer": consumer or project}
    sentence = found.advice(project=project, **given)
    return ProjectError(error.status, error.code, error.message, error.reason, error.retry_after_s, sentence=sentence)
