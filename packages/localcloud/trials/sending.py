"""Send requests with the login of the environment, to Google or to the endpoints that environment variables set."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import google.auth
import requests
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession, Request

from localcloud.environment import API_OVERRIDES, REAL_PLUGIN_ENDPOINTS
from localcloud.json_values import as_list, as_object
from localcloud.trials.trial_options import TryRefusedError

_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
_HUB: Final = "huggingface.co"
_SERVICE_USAGE: Final = "serviceusage.googleapis.com"
_LONGEST: Final = 200
_TIMEOUT_S: Final = 120
_ENABLED_LIMIT_S: Final = 600.0
"""Total time in a run for which an enabled API can answer that it is disabled. Google: "wait a few minutes"."""
_ENABLED_PAUSE_S: Final = 10.0
_OFF: Final = ("SERVICE_DISABLED", "accessNotConfigured", "API has not been used in project")
_CODES: Final = {3: 400, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501, 13: 500, 14: 503, 16: 401}
"""google.rpc.Code -> HTTP status."""


class Session(Protocol):
    """HTTP session: requests.Session, or google-auth's session with a login."""

    def request(self, method: str, url: str, **kwargs: Any) -> requests.Response:  # noqa: ANN401 - parameters of requests
        """Send a request."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiReply:
    """A response. `status` 0: no response, and `message` has the reason. `reason` is the reason of google.rpc.ErrorInfo, or the canonical code."""

    status: int
    reason: str = ""
    message: str = ""
    body: object = None
    is_of_operation: bool = False

    @property
    def is_accepted(self) -> bool:
        """Return whether the request succeeded."""
        return 200 <= self.status < 300  # noqa: PLR2004 - HTTP's successes

    @property
    def is_api_off(self) -> bool:
        """Return whether the request failed because its API is disabled, or was just enabled."""
        return self.status == 403 and any(word in f"{self.reason} {self.message}" for word in _OFF)  # noqa: PLR2004 - HTTP

    @property
    def operation(self) -> str:
        """Return the name of an operation that is pending or failed; else an empty text."""
        body = as_object(self.body)
        name = str(body.get("name"))
        is_one = self.is_accepted and "/operations/" in name
        return name if is_one and (body.get("done") is not True or "error" in body) else ""

    @property
    def summary(self) -> str:
        """Return the response in one line."""
        where = " (operation)" if self.is_of_operation else ""
        text = " ".join([str(self.status), self.reason, self.message]) if self.status else self.message
        short = " ".join(text.split())
        return (short if len(short) <= _LONGEST else short[: _LONGEST - 3] + "...") + where


def open_session(project: str) -> AuthorizedSession:
    """Return a session with the Application Default Credentials, and the project as quota project. Raises TryRefusedError without a login."""
    try:
        # The library is untyped.
        credentials = cast("Any", google.auth).default(scopes=_SCOPES, quota_project_id=project)[0]
        session = AuthorizedSession(credentials)
        credentials.refresh(Request())
    except GoogleAuthError as error:
        raise TryRefusedError(
            f"No Google login found ({type(error).__name__}). Run `gcloud auth application-default login`."
        ) from None
    return session


def _roots(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the root URL of each API by name, such as `https://run.googleapis.com`: an environment variable's, otherwise Google's."""
    found = {api.lower(): f"https://{api.lower()}.googleapis.com" for api in API_OVERRIDES}
    found[_HUB] = environment.get("HF_ENDPOINT", "").rstrip("/") or f"https://{_HUB}"
    named = [(name, path) for name, path in REAL_PLUGIN_ENDPOINTS.items()]
    named += [(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", path) for api, path in API_OVERRIDES.items()]
    for name, path in named:
        api, _, version = path.partition("/")
        value = environment.get(name, "").rstrip("/")
        if value:
            found[api] = value.removesuffix("/" + version.rstrip("/")) if version else value
    return found


class Sender:
    """Sends requests with and without the login."""

    def __init__(self, session: Session, environment: Mapping[str, str]) -> None:
        """Use Google's endpoints, unless a variable of the environment sets another one."""
        self._session = session
        self._plain = requests.Session()
        self._roots = _roots(environment)
        self._patience_s = 0.0
        self._pause: Callable[[float], None] | None = None

    def expect_enabled(self, pause: Callable[[float], None]) -> None:
        """Send a request again while its API answers that it is disabled, because some APIs were just enabled. `pause` waits seconds."""
        self._patience_s, self._pause = _ENABLED_LIMIT_S, pause

    @property
    def is_google(self) -> bool:
        """Return whether requests go to Google itself."""
        return all(root == f"https://{api}.googleapis.com" for api, root in self._roots.items() if api != _HUB)

    def send(
        self,
        method: str,
        url: str,
        body: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        has_login: bool = True,
        waits: bool = True,
    ) -> ApiReply:
        """Return the response to a request. Redirects are not followed. `waits` False: a disabled API is an answer."""
        reply = self._answered(method, url, body, headers, has_login=has_login)
        while waits and reply.is_api_off and self._pause is not None and self._patience_s > 0:
            self._patience_s -= _ENABLED_PAUSE_S
            self._pause(_ENABLED_PAUSE_S)
            reply = self._answered(method, url, body, headers, has_login=has_login)
        return reply

    def _answered(
        self, method: str, url: str, body: str | None, headers: Mapping[str, str] | None, *, has_login: bool
    ) -> ApiReply:
        sender = self._session if has_login else self._plain
        wanted = {**({"Content-Type": "application/json"} if body is not None else {}), **(headers or {})}
        try:
            answer = sender.request(
                method,
                self._routed(url),
                data=None if body is None else body.encode(),
                headers=wanted,
                timeout=_TIMEOUT_S,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            return ApiReply(status=0, message=f"no response ({type(error).__name__})")
        return _reply(answer.status_code, answer.text)

    def operation(self, url: str, name: str) -> ApiReply:
        """Return the state of the operation of a request to `url`. An error of it has the HTTP status of its code."""
        parts = urlsplit(url)
        version = parts.path.split("/")[1]
        reply = self.send("GET", f"{parts.scheme}://{parts.netloc}/{version}/{name}")
        body = as_object(reply.body)
        error = as_object(body.get("error"))
        if not error or not reply.is_accepted:
            return reply
        status = _CODES.get(int(error.get("code") or 0), 500)
        return ApiReply(status=status, message=json.dumps(error), body=reply.body, is_of_operation=True)

    def _routed(self, url: str) -> str:
        parts = urlsplit(url)
        root = self._roots.get(parts.netloc.removesuffix(".googleapis.com"))
        return url if root is None else root + parts.path + (f"?{parts.query}" if parts.query else "")


def _reply(status: int, text: str) -> ApiReply:
    try:
        body: object = json.loads(text)
    except ValueError:
        body = None
    error = as_object(as_object(body).get("error"))
    reasons = [as_object(detail).get("reason") for detail in as_list(error.get("details"))]
    reason = next((str(found) for found in reasons if found), str(error.get("status") or ""))
    message = cast("str", error.get("message") or "") or ("" if error else text[:300])
    details = json.dumps(error.get("details")) if error.get("details") else ""
    return ApiReply(status=status, reason=reason, message=f"{message} {details}".strip(), body=body)


def require_enabled(sender: Sender, project: str, apis: Iterable[str]) -> None:
    """Return if these APIs are enabled. Raises TryRefusedError with one command that enables the others."""
    off = sorted(frozenset(apis) - _enabled(sender, project))
    if off:
        raise TryRefusedError(
            f"{len(off)} APIs that the trials call are not enabled in project {project}. Run: "
            f"gcloud services enable {' '.join(off)} --project={project}"
        )


def _enabled(sender: Sender, project: str) -> frozenset[str]:
    """Return the enabled APIs; none if Service Usage, which lists them, is off itself."""
    url = f"https://{_SERVICE_USAGE}/v1/projects/{project}/services?filter=state:ENABLED&pageSize=200"
    found: set[str] = set()
    page = ""
    while True:
        reply = sender.send("GET", url + page)
        if reply.is_api_off:
            return frozenset()
        if not reply.is_accepted:
            raise TryRefusedError(
                f"Cannot read project {project}: {reply.summary}. Check the id, the login "
                "(gcloud auth application-default login) and the role roles/serviceusage.serviceUsageViewer."
            )
        listed = map(as_object, as_list(as_object(reply.body).get("services")))
        found |= {str(each.get("name")).rpartition("/")[2] for each in listed if each.get("state") == "ENABLED"}
        token = as_object(reply.body).get("nextPageToken")
        if not token:
            return frozenset(found)
        page = f"&pageToken={token}"
