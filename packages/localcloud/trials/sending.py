"""Send requests with the login of the environment, to Google or to the endpoints that environment variables set."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import requests

from localcloud.json_values import as_list, as_object
from localcloud.trials.endpoints import HUB, Endpoints

_TIMEOUT_S: Final = 120
_ENABLED_LIMIT_S: Final = 600.0
"""Total time in a run for which an API that is listed as enabled can answer that it is disabled. Google: "wait a few minutes"."""
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
    """An answer. `status` 0: no response, and `message` has the reason. `reason` is the reason of google.rpc.ErrorInfo, or the canonical code."""

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
        """Return whether the request failed because its API is disabled, or was enabled a moment ago."""
        return self.status == 403 and any(word in f"{self.reason} {self.message}" for word in _OFF)  # noqa: PLR2004 - HTTP

    @property
    def operation(self) -> str:
        """Return the name of an operation that is pending or failed, or of one of Compute Engine its link; else an empty text."""
        body = as_object(self.body)
        if not self.is_accepted:
            return ""
        if body.get("kind") == "compute#operation":
            is_done, name = body.get("status") == "DONE", str(body.get("selfLink"))
        else:
            is_done, name = body.get("done") is True, str(body.get("name"))
        return name if "/operations/" in name and (not is_done or "error" in body) else ""


class Sender:
    """Sends requests with and without the login."""

    def __init__(self, session: Session, endpoints: Endpoints) -> None:
        self._session = session
        self._plain = requests.Session()
        self._endpoints = endpoints
        self._patience_s = 0.0
        self._pause: Callable[[float], None] | None = None

    def expect_enabled(self, pause: Callable[[float], None]) -> None:
        """Send a request again while its API answers that it is disabled: the APIs are enabled, some a moment ago. `pause` waits seconds."""
        self._patience_s, self._pause = _ENABLED_LIMIT_S, pause

    @property
    def is_google(self) -> bool:
        """Return whether requests go to Google itself."""
        return all(root == f"https://{api}.googleapis.com" for api, root in self._endpoints.roots.items() if api != HUB)

    def send(
        self,
        method: str,
        url: str,
        body: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        has_login: bool = True,
    ) -> ApiReply:
        """Return the answer to a request. Redirects are not followed."""
        reply = self._answered(method, url, body, headers, has_login=has_login)
        while reply.is_api_off and self._pause is not None and self._patience_s > 0:
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
        path = f"compute/{name.partition('/compute/')[2]}" if name.startswith("http") else f"{version}/{name}"
        reply = self.send("GET", f"{parts.scheme}://{parts.netloc}/{path}")
        body = as_object(reply.body)
        error = as_object(body.get("error"))
        if not error or not reply.is_accepted:
            return reply
        status = int(body.get("httpErrorStatusCode") or _CODES.get(int(error.get("code") or 0), 500))
        return ApiReply(status=status, message=json.dumps(error), body=reply.body, is_of_operation=True)

    def _routed(self, url: str) -> str:
        parts = urlsplit(url)
        api = parts.netloc.removesuffix(".googleapis.com")
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        return self._endpoints.url(f"{api}{path}") or url


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
