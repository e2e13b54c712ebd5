"""Calls of Google's REST APIs with Application Default Credentials, at the environment's endpoints."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar, cast

import google.auth
import google.auth.exceptions
import requests
from google.auth.credentials import Credentials
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from cloud import google_session
from cloud.clock import GOOGLE_CLOCK
from cloud.google_session import GoogleCallError, endpoint, refusal_in
from contracts.answers import Absent, Answer, Cause, Present, Unknown
from contracts.errors import CommandRefusedError, ScriptError

CALL_LIMIT_S = 60.0
_RETRIED = frozenset({429, 500, 502, 503, 504})
_ATTEMPTS = 4
CONNECTIONS = 32
"""Concurrent connections to one API."""
_PROJECT = re.compile(r"(?:/projects/|[?&]project=)([^/:?&]+)")
_GONE = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
_CAUSES: Mapping[int, Cause] = {HTTPStatus.FORBIDDEN: "denied", HTTPStatus.NOT_IMPLEMENTED: "not simulated"}
_API_OFF = frozenset({"SERVICE_DISABLED", "accessNotConfigured"})
"""Reasons of an API that is off or was just enabled; the second one is used by Cloud Storage and Compute Engine."""
_NO_QUOTA_PROJECT = "requires a quota project"
"""Google's message, with the reason of an API that is off, for a call without a quota project."""


T = TypeVar("T")


class GoogleListError(GoogleCallError):
    """An error response from Google."""

    @property
    def is_api_off(self) -> bool:
        """True if the API is off or was just enabled."""
        return self.reason in _API_OFF and _NO_QUOTA_PROJECT not in str(self)


class NotJsonError(ScriptError):
    """A response that is not JSON, such as an object of a bucket with other content."""


class UnansweredError(ScriptError):
    """No usable response from Google after all attempts. Whether a change was made is unknown."""


class _TransientError(Exception):
    """An error that a retry may resolve."""


@dataclass(frozen=True, slots=True)
class GoogleApi:
    """One session for all APIs. Calls raise GoogleListError, or ScriptError without a response."""

    session: requests.Session
    projects: tuple[str, ...]
    """Quota projects: the one that a call is about, otherwise the first."""

    def pages(self, api: str, path: str) -> Iterator[Mapping[str, object]]:
        """Yield the pages of a list method."""
        token = ""
        while True:
            page = self._ask("GET", endpoint(api) + path, {"pageToken": token} if token else {})
            yield page
            token = str(page.get("nextPageToken") or "")
            if not token:
                return

    def get(self, api: str, path: str) -> Mapping[str, object]:
        """Return the response of a read method."""
        return self._ask("GET", endpoint(api) + path, {})

    def post(self, api: str, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """Return the response of a read method with a body."""
        return self._ask("POST", endpoint(api) + path, {}, body)

    def put(self, api: str, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """Replace a resource and return the response."""
        return self._ask("PUT", endpoint(api) + path, {}, body)

    def patch(
        self, api: str, path: str, body: Mapping[str, object], parameters: Mapping[str, str]
    ) -> Mapping[str, object]:
        """Change a resource and return the response."""
        return self._ask("PATCH", endpoint(api) + path, parameters, body)

    def delete(self, api: str, path: str, parameters: Mapping[str, str]) -> Mapping[str, object]:
        """Delete a resource and return the response."""
        return self._ask("DELETE", endpoint(api) + path, parameters)

    def _ask(
        self, verb: str, url: str, parameters: Mapping[str, str], body: Mapping[str, object] | None = None
    ) -> Mapping[str, object]:
        try:
            return self._attempt(verb, url, parameters, body)
        except _TransientError as error:
            raise UnansweredError(f"{url} failed {_ATTEMPTS} times ({error}). Try again later.") from None
        except google.auth.exceptions.GoogleAuthError as error:
            raise ScriptError(
                f"Google rejected the credentials ({str(error).splitlines()[0]}). "
                "Run `gcloud auth application-default login`."
            ) from None

    def _counted(self, url: str) -> "google_session.Counted | None":
        if not self.projects:
            return None
        named = _PROJECT.search(url)
        about = named[1] if named is not None else ""
        return google_session.counted_for(about if about in self.projects else self.projects[0])

    @retry(
        retry=retry_if_exception_type(_TransientError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential_jitter(multiplier=0.5, max=8),
        reraise=True,
    )
    def _attempt(
        self, verb: str, url: str, parameters: Mapping[str, str], body: Mapping[str, object] | None
    ) -> Mapping[str, object]:
        try:
            answer = self.session.request(
                verb, url, params=dict(parameters), json=body, timeout=CALL_LIMIT_S, auth=self._counted(url)
            )
        except (requests.ConnectionError, requests.Timeout) as error:
            raise _TransientError(type(error).__name__) from None
        GOOGLE_CLOCK.see(answer.headers.get("Date"))
        if answer.status_code in _RETRIED:
            raise _TransientError(f"HTTP {answer.status_code}")
        if not answer.ok:
            raise GoogleListError(answer.status_code, *refusal_in(answer))
        try:
            return cast("Mapping[str, object]", answer.json() if answer.content else {})
        except ValueError:
            raise NotJsonError(f"{url.partition('?')[0]} returned a response that is not JSON.") from None


def answer_of(service: str, read: Callable[[], T]) -> Answer[T]:
    """Return the result of a read call. Only 404 and 410 prove that a resource does not exist."""
    try:
        return Present(read())
    except GoogleListError as error:
        if error.status in _GONE:
            return Absent()
        if error.is_api_off:
            return Unknown(f"the API {service}.googleapis.com is off or was just enabled", "api off", service)
        return Unknown(str(error), _CAUSES.get(error.status or 0, "other"))
    except ScriptError as error:
        return Unknown(str(error))


def lookup(api: GoogleApi, service: str, path: str) -> Answer[Mapping[str, object]]:
    """Return whether a resource exists, with its document."""
    return answer_of(service, lambda: api.get(service, path))


def enable_command(project: str, apis: Iterable[str]) -> str:
    """Return the command that enables APIs of a project."""
    return f"gcloud services enable {' '.join(f'{api}.googleapis.com' for api in apis)} --project={project}"


def connect(*projects: str, given: Credentials | None = None, connections: int = CONNECTIONS) -> GoogleApi:
    """Return a session with the user's credentials, or those `given`, and quota projects.

    Without a project, only Cloud Storage accepts a login. Raises CommandRefusedError without credentials.
    """
    session = google_session.open_session(None, given=given or credentials(), connections=connections)
    return GoogleApi(session, projects)


def credentials() -> Credentials:
    """Return the user's credentials. Raises CommandRefusedError without any."""
    try:
        return google_session.credentials()
    except google.auth.exceptions.DefaultCredentialsError:
        raise CommandRefusedError("No Google credentials found. Run `gcloud auth application-default login`.") from None
