"""Calls of Google's REST APIs with Application Default Credentials, at the environment's endpoints."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final, Literal, TypeVar

import google.auth
import google.auth.exceptions
import requests
from google.auth.credentials import Credentials
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from gcp_tpu_provider import refusals
from gemma_serving.cloud import google_session
from gemma_serving.cloud.google_session import (
    GoogleListError,
    MachineWideError,
    NoConnectionError,
    RejectedLoginError,
    endpoint,
    host_of,
    sent,
)
from gemma_serving.cloud.kinds import Item, ResourceKind
from gemma_serving.cloud.troubles import TROUBLES
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.proof import Asker, Proof
from gemma_serving.contracts.three_answers import Absent, Answer, Cause, Present, Unknown

CALL_LIMIT_S = 60.0
NO_CREDENTIALS = "No Google credentials found"
_RETRIED = frozenset({429, 500, 502, 503, 504})
_ATTEMPTS = 4
_PAUSES = wait_exponential_jitter(multiplier=0.5, max=8)
_REPEATED_S = 7.0
"""Longest sum of the pauses between attempts: each is 0.5 s, doubled, and up to 1 s more."""
_PROJECT = re.compile(r"(?:/projects/|[?&]project=)([^/:?&]+)")
_GONE = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
_CAUSES: Mapping[int, Cause] = {HTTPStatus.FORBIDDEN: "denied", HTTPStatus.NOT_IMPLEMENTED: "not simulated"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GoogleApi:
    """One session for all APIs. Calls raise GoogleListError, or ScriptError without a usable response."""

    session: requests.Session
    projects: tuple[str, ...]
    """Quota projects: the one that a call is about, otherwise the first."""

    def pages(self, api: str, path: str) -> Iterator[Mapping[str, object]]:
        """Yield the pages of a list method."""
        token = ""
        while True:
            page = self._ask("GET", api, path, {"pageToken": token} if token else {})
            yield page
            token = str(page.get("nextPageToken") or "")
            if not token:
                return

    def get(self, api: str, path: str) -> Mapping[str, object]:
        """Return the response of a read method."""
        return self._ask("GET", api, path, {})

    def post(self, api: str, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """Return the response of a read method with a body."""
        return self._ask("POST", api, path, {}, body)

    def change(
        self,
        verb: Literal["PUT", "PATCH"],
        api: str,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> Mapping[str, object]:
        """Replace or change a resource and return the response."""
        return self._ask(verb, api, path, parameters or {}, body)

    def delete(
        self, api: str, path: str, proof: Proof, asker: Asker, *, parameters: Mapping[str, str]
    ) -> Mapping[str, object]:
        """Delete the resource that the proof names, and return the response. Raises NotOwnedError too."""
        proof.require(asker)
        return self._ask("DELETE", api, path, parameters)

    def _ask(
        self, verb: str, api: str, path: str, parameters: Mapping[str, str], body: Mapping[str, object] | None = None
    ) -> Mapping[str, object]:
        url = endpoint(api) + path
        attempts = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=_PAUSES,
            before_sleep=partial(_repeats, api),
            reraise=True,
        )
        given = {"params": parameters, "json": body, "timeout": CALL_LIMIT_S, "auth": self._counted(url)}
        try:
            answer = attempts(sent, self.session, verb, url, **given)
        except google.auth.exceptions.TransportError as error:
            raise NoConnectionError(url, error) from None
        except google.auth.exceptions.GoogleAuthError as error:
            raise RejectedLoginError(error) from None
        except (requests.ConnectionError, requests.Timeout, GoogleListError) as error:
            if isinstance(error, GoogleListError) and error.status == HTTPStatus.UNAUTHORIZED:
                raise RejectedLoginError from None
            if not _may_pass(error):
                TROUBLES.answered(api)
                raise
            if isinstance(error, requests.ConnectionError):
                raise NoConnectionError(url, error) from None
            raise ScriptError(f"{host_of(url)} failed {_ATTEMPTS} times ({_why(error)}). Try again later.") from None
        TROUBLES.answered(api)
        return answer

    def _counted(self, url: str) -> "google_session.Counted | None":
        if not self.projects:
            return None
        named = _PROJECT.search(url)
        about = named[1] if named is not None else ""
        return google_session.counted_for(about if about in self.projects else self.projects[0])


def _repeats(api: str, state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    if error is not None and not isinstance(error, requests.ConnectionError):
        TROUBLES.failed(api, _why(error), limit_s=_REPEATED_S)


def _why(error: BaseException) -> str:
    return f"HTTP {error.status}" if isinstance(error, GoogleListError) else type(error).__name__


def _may_pass(error: BaseException) -> bool:
    """Return whether another attempt can succeed, because the response was lost or Google requests a pause."""
    if isinstance(error, GoogleListError):
        return error.status in _RETRIED
    return isinstance(error, requests.ConnectionError | requests.Timeout)


def answer_of(service: str, read: Callable[[], T]) -> Answer[T]:
    """Return the result of a read call. Only 404 and 410 prove that a resource does not exist. `listed` reads lists."""
    try:
        return Present(read())
    except GoogleListError as error:
        if error.status in _GONE:
            return Absent()
        if error.is_api_off:
            return Unknown(f"the API {service}.googleapis.com is off or was just enabled", "api off", service)
        cause = _CAUSES.get(error.status or 0, "other")
        return Unknown(str(error) if cause == "not simulated" else refusals.said(str(error), error.reason), cause)
    except MachineWideError as error:
        return Unknown(str(error), error.cause)
    except ScriptError as error:
        return Unknown(str(error))


def lookup(api: GoogleApi, service: str, path: str) -> Answer[Mapping[str, object]]:
    """Return whether something exists, with its document."""
    return answer_of(service, lambda: api.get(service, path))


def read_resource(api: GoogleApi, kind: ResourceKind, name: str) -> Item:
    """Return the document of a resource by its full name. Raises GoogleListError, and ScriptError for a document of something else."""
    document = api.get(kind.api, kind.address(name))
    if kind.name(document).rpartition("/")[2] != name.rpartition("/")[2]:
        raise ScriptError(f"Google answered a request for {kind.kind} {name} without its name")
    return document


def lookup_resource(api: GoogleApi, kind: ResourceKind, name: str) -> Answer[Item]:
    """Return whether a resource exists, by its full name, with its document."""
    return answer_of(kind.api, lambda: read_resource(api, kind, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Result of a list method. Only `listed` creates one, so a part of a list proves no absence."""

    place: str
    """Path of the list."""
    pages: tuple[Item, ...]
    """The pages that were read, even if the list is incomplete."""
    unread: Absent | Unknown | None
    """None: the list is complete. Absent: its place, which settings alone name, does not exist. Unknown: why it is incomplete."""

    @property
    def answer(self) -> Answer[Sequence[Item]]:
        """All pages, which are the whole list."""
        return self.unread or Present(self.pages)

    def whole(self) -> Sequence[Item]:
        """Return all pages. Raises ScriptError for an incomplete list."""
        if self.unread is None:
            return self.pages
        why = self.unread.why if isinstance(self.unread, Unknown) else "it does not exist"
        raise ScriptError(f"Google returned no whole list of {self.place.partition('?')[0]}: {why}")


def listed(api: GoogleApi, service: str, path: str, *, is_place: bool = True, never_empty: str = "") -> Listed:
    """Return a list.

    `is_place` False: settings alone name its place, so a 404, 410 or 403 says that the place does not exist.
    `never_empty`: key of items of which a whole list has at least one, as `locations`.
    """
    pages: list[Item] = []
    answer = answer_of(service, lambda: pages.extend(api.pages(service, path)))  # pages before a failure stay
    omitted = [place for page in pages for place in omitted_places(page)]
    unread = None if isinstance(answer, Present) else answer
    if omitted:
        unread = Unknown(f"{', '.join(omitted)} could not be reached")
    elif isinstance(unread, Absent) and (is_place or pages):
        unread = Unknown("Google answered 404: no such list")
    elif isinstance(unread, Unknown) and unread.cause == "denied" and not is_place:
        unread = Absent()
    elif never_empty and unread is None and not any(as_sequence(page.get(never_empty)) for page in pages):
        unread = Unknown("the list is empty")
    return Listed(place=path, pages=tuple(pages), unread=unread)


_HARMLESS_WARNINGS: Final = frozenset({"NO_RESULTS_ON_PAGE"})
"""Codes of Compute Engine warnings that omit nothing (discovery: compute.v1 RoutersScopedList.warning.code)."""


def omitted_places(page: Item) -> Iterator[str]:
    """Yield the locations that the response itself reports as omitted."""
    for key in ("unreachable", "unreachables"):
        yield from map(str, as_sequence(page.get(key)))
    for scope, part in {"": page, **as_mapping(page.get("items"))}.items():
        warning = as_mapping(as_mapping(part).get("warning"))
        if warning and warning.get("code") not in _HARMLESS_WARNINGS:
            yield scope or str(warning.get("message") or warning.get("code"))


def enable_command(project: str, apis: Iterable[str]) -> str:
    """Return the command that enables APIs of a project."""
    return f"gcloud services enable {' '.join(f'{api}.googleapis.com' for api in apis)} --project={project}"


def connect(*projects: str, given: Credentials | None = None) -> GoogleApi:
    """Return a session with the user's credentials, or those `given`, and its quota projects: the stack's, or all that are searched.

    Without a quota project, only Cloud Storage accepts a user's login. Raises CommandRefusedError without credentials.
    """
    return GoogleApi(google_session.open_session(None, given=given or credentials()), projects)


def credentials() -> Credentials:
    """Return the user's credentials. Raises CommandRefusedError without any."""
    try:
        return google_session.credentials()
    except google.auth.exceptions.DefaultCredentialsError:
        raise CommandRefusedError(f"{NO_CREDENTIALS}. {google_session.login_hint()}") from None
