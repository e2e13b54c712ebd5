"""The session for every call to Google's REST APIs: the user's credentials and the quota project.

Loading Google's libraries takes half a second, so they are imported when a session is opened.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

from gcp_tpu_provider import refusals
from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.three_answers import Cause

if TYPE_CHECKING:
    import requests
    from google.auth.credentials import Credentials
    from google.auth.exceptions import GoogleAuthError


class GoogleCallError(Exception):
    """A call without a usable response: HTTP status (0 without a response), message and reason."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def meaning(self) -> str:
        """Meaning of Google's words in the provider's table of refusals."""
        return refusals.read(str(self), self.reason).meaning

    @property
    def is_api_off(self) -> bool:
        """True if the API is off or was just enabled."""
        return self.meaning == refusals.API_OFF

    @property
    def is_denied(self) -> bool:
        """True if the caller lacks a permission, or may lack one."""
        return self.meaning in refusals.DENIED

    @property
    def is_quota_project_denied(self) -> bool:
        """True if the caller must not use the project as the quota project."""
        return self.meaning == refusals.QUOTA_PROJECT


class GoogleListError(GoogleCallError):
    """An error response from Google."""

    def said(self, project: str) -> str:
        """Return Google's words as sentences: with the fix if no role is one, or that they are new."""
        return refusals.said(str(self), self.reason, project=project, consumer=project)


class MachineWideError(ScriptError):
    """Every call of this machine fails for one reason. The message is the same for all calls, so a command says it once."""

    cause: Cause


NO_CONNECTION: Final = "No connection to "
"""Start of a `NoConnectionError`'s message."""


class NoConnectionError(MachineWideError):
    """No connection to an API."""

    cause = "no connection"

    def __init__(self, url: str, error: Exception) -> None:
        place = f"{host_of(url)} ({type(error).__name__})"
        self.problem = f"no connection to {place}"
        super().__init__(f"{NO_CONNECTION}{place}. Check the network of this machine, then run the same command again.")


class RejectedLoginError(MachineWideError):
    """Google rejects the caller's login. `error`: google-auth's, if it could not renew a token."""

    cause = "no login"

    def __init__(self, error: "GoogleAuthError | None" = None) -> None:
        said = masked(str(error.args[0])) if error is not None and error.args else "HTTP 401"
        why = said.splitlines()[0].rstrip(".")
        self.problem = f"Google rejected your login ({why})"
        if os.environ.get(TOKEN_VARIABLE):
            self.problem = f"Google rejected the access token in {TOKEN_VARIABLE}"
        super().__init__(f"{self.problem}. {login_hint()}")


def login_command() -> str:
    """Return the command that replaces the login in use. gcloud's login is used only without these variables."""
    named = next((name for name in (TOKEN_VARIABLE, _FILE_VARIABLE) if os.environ.get(name)), "")
    return f"unset {named}" if named else "gcloud auth application-default login"


def login_hint() -> str:
    """Return the sentence that names the command which replaces the login in use."""
    return f"Run `{login_command()}`, then the same command again."


class NotJsonError(ScriptError):
    """A response that is not JSON, such as an object of a bucket with other content."""


Counted: TypeAlias = "Callable[[requests.PreparedRequest], requests.PreparedRequest]"

TOKEN_VARIABLE: Final = "GOOGLE_OAUTH_ACCESS_TOKEN"  # noqa: S105 - the name of a variable
"""An access token in this variable precedes all other credentials, as in the providers."""
_FILE_VARIABLE: Final = "GOOGLE_APPLICATION_CREDENTIALS"
QUOTA_HEADER: Final = "x-goog-user-project"
"""Header with the quota project of a call. The caller needs serviceusage.services.use on it."""
_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
CONNECTIONS: Final = 64
_BODY_LIMIT_BYTES: Final = 2**26
_BODY_LIMIT_S: Final = 300.0
"""Limits of one response, decompressed."""
AT_ONCE: Final = 32
"""Lists of a search, and deletions, that run at the same time."""


def endpoint(api: str) -> str:
    """Return an API's root URL with a trailing slash: CLOUDSDK_API_ENDPOINT_OVERRIDES_<API>, otherwise Google's.

    gcloud expects `storage/v1/` and `compute/v1/` at the end of two of them; the root excludes these.
    """
    override = os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}", "").rstrip("/")
    return f"{override.removesuffix(f'/{api}/v1')}/" if override else f"https://{api}.googleapis.com/"


def host_of(url: str) -> str:
    """Return the host of a URL for a message, the same for all APIs of Google."""
    host = urlsplit(url).netloc.rpartition("@")[2]
    return "googleapis.com" if host.endswith(".googleapis.com") else host


def sent(session: "requests.Session", verb: str, url: str, **arguments: Any) -> Mapping[str, object]:  # noqa: ANN401 - of requests
    """Return the response. Raises GoogleListError, NotJsonError, GoogleAuthError and requests.RequestException."""
    with session.request(verb, url, stream=True, **arguments) as response:
        GOOGLE_CLOCK.see(response.headers.get("Date"))
        body = _body_of(response)
    if not response.ok:
        raise GoogleListError(response.status_code, *_refusal_in(body, response.status_code))
    try:
        found: object = json.loads(body) if body else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise NotJsonError(f"{masked(url).partition('?')[0]} returned a response that is not a JSON object.")
    document = cast("Mapping[str, object]", found)
    # An operation that failed has `done`, or `status` at Compute Engine, beside its error. Any other body with an error is a refusal.
    if as_mapping(document.get("error")) and not {"done", "status"} & document.keys():
        raise GoogleListError(response.status_code, *_refusal_in(body, response.status_code))
    return document


def _body_of(response: "requests.Response", now_s: Callable[[], float] = time.monotonic) -> bytes:
    """Return a body, decompressed. Raises NotJsonError above the limits. The timeout of `requests` is one of each read."""
    body, end_s = bytearray(), now_s() + _BODY_LIMIT_S
    for piece in response.iter_content(2**16):
        body += piece
        if len(body) > _BODY_LIMIT_BYTES or now_s() > end_s:
            limits = f"At most {_BODY_LIMIT_BYTES // 2**20} MiB in {_BODY_LIMIT_S:.0f} s are read"
            place = masked(response.url).partition("?")[0]
            raise NotJsonError(f"{place} sent {len(body):,} bytes without an end. {limits}. Check what responds there.")
    return bytes(body)


def _refusal_in(body: bytes, status: int) -> tuple[str, str]:
    """Return the message, without secrets, and reason in an error response from Google; for another body, the status."""
    try:
        error = as_mapping(as_mapping(json.loads(body)).get("error"))
    except ValueError:
        error = as_mapping(None)
    # Cloud Storage and Compute Engine return `errors`, the other APIs `details`.
    details = map(as_mapping, (*as_sequence(error.get("details")), *as_sequence(error.get("errors"))))
    reason = next((str(detail["reason"]) for detail in details if "reason" in detail), "")
    return masked(str(error.get("message") or f"HTTP {status}")), reason


def credentials() -> "Credentials":
    """Return the user's credentials. Raises google.auth.exceptions.DefaultCredentialsError without any."""
    import google.auth  # noqa: PLC0415 - slow to load
    from google.oauth2.credentials import Credentials  # noqa: PLC0415 - as above

    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        return Credentials(token=token)
    return cast("tuple[Credentials, object]", google.auth.default(scopes=_SCOPES))[0]  # pyright: ignore[reportUnknownMemberType] - the library is untyped


def open_session(project: str | None, *, given: "Credentials | None" = None) -> "requests.Session":
    """Return a session with the user's credentials, or those `given`, whose calls count against the quota of `project`.

    None as the project: each call names its own, or is one of Cloud Storage, which uses the bucket's project.
    Raises google.auth.exceptions.DefaultCredentialsError without credentials.
    """
    from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415 - slow to load
    from requests.adapters import HTTPAdapter  # noqa: PLC0415 - as above

    session = AuthorizedSession(given or credentials())
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    if project is not None:
        session.auth = counted_for(project)
    return session


def counted_for(project: str) -> Counted:
    """Return a function that sets a request's quota project, for any caller and any quota project of the login.

    Google rejects most calls of a user's login without one. The header is set on the request, not on the credentials, which also
    send it with the token exchange, for which a federated identity may lack permission (google-github-actions/auth#250).
    """

    def add(request: "requests.PreparedRequest") -> "requests.PreparedRequest":
        request.headers[QUOTA_HEADER] = project
        return request

    return add
