"""The REST client of the stand-ins: JSON requests with retries, and operations polled until they finish."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias, cast

import aiohttp

from localcloud.plugins.schema import Json, Object

Query: TypeAlias = Mapping[str, str] | None


_RETRIED: Final = frozenset({429, 500, 502, 503, 504})
_MAX_ATTEMPTS: Final = 8
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_REQUEST_LIMIT_S: Final = 60.0
_FIRST_POLL_S: Final = 0.02
_LONGEST_POLL_S: Final = 0.5
_LEAST_WAIT_S: Final = 5.0
"""Minimum of every limit in real seconds, regardless of the simulated speed, because processes start in real time."""
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_SUCCESS_BELOW: Final = 300


class PluginError(Exception):
    """An error for the user: one message, with the real provider's text if it has one."""


class RestError(PluginError):
    """An error response of Google's API: the HTTP status and the API's message."""

    def __init__(self, status: int, message: str, reason: str = "", *, doing: str = "") -> None:
        text = f"googleapi: Error {status}: {message}" + (f", {reason}" if reason else "")
        super().__init__(f"Error {doing}: {text}" if doing else text)
        self.status = status
        self.reason = reason

    @property
    def is_missing(self) -> bool:
        """Return whether the error is a 404, which means that the resource does not exist."""
        return self.status == _NOT_FOUND

    @property
    def is_conflict(self) -> bool:
        """Return whether the error is a 409, which means that the resource already exists or changed since it was read."""
        return self.status == _CONFLICT


class OperationError(PluginError):
    """A long-running operation failed, with its code and message."""

    def __init__(self, code: Json, message: str) -> None:
        super().__init__(f"Error code {code}, message: {message}" if code is not None else message)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportReply:
    """A response: the HTTP status and the body's text."""

    status: int
    text: str


class RestTransport(Protocol):
    """Sends one HTTP request. Tests replace it with an in-memory store."""

    async def send(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None
    ) -> TransportReply:
        """Send a request to a path below the base URL. Raises OSError without a response."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class LocalCloudTransport:
    """The transport over HTTP; `base_url` is the local cloud's, such as `http://127.0.0.1:8080`."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None
    ) -> TransportReply:
        """Send a request."""
        if self._session is None:
            # As many connections as the engine has resources in progress, so one slow operation does not block others.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=_REQUEST_LIMIT_S)
            )
        try:
            async with self._session.request(
                method, f"{self._base_url}/{path}", params=dict(query), headers=dict(headers), data=body
            ) as response:
                return TransportReply(status=response.status, text=await response.text())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OSError(f"no response from {self._base_url}: {type(error).__name__}") from error

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def bearer(token: str | None) -> dict[str, str]:
    """Return the headers that send a token, if one exists."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


class Rest:
    """JSON over a transport. As in the real provider, 429, 5xx and broken connections are retried for a limited time."""

    def __init__(self, transport: RestTransport, *, token: str | None = None, speed: float = 1.0) -> None:
        """Send the token, if one exists, with each request. `speed` is the cloud's clock speed, in simulated seconds per real second."""
        self._transport = transport
        self._token = token
        self._identity = bearer(token)
        self._speed = speed

    def counted_for(self, project: str) -> "Rest":
        """Return a client on the same transport whose calls name a quota project. Without a project, return this one."""
        if not project:
            return self
        counted = Rest(self._transport, token=self._token, speed=self._speed)
        counted._identity = {**self._identity, "X-Goog-User-Project": project}
        return counted

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def get(self, path: str, query: Query = None) -> Object:
        """Send a GET and return the JSON object."""
        return await self.call("GET", path, query=query)

    async def find(self, path: str, query: Query = None) -> Object | None:
        """Send a GET and return the JSON object, or None if it is a 404."""
        try:
            return await self.get(path, query)
        except RestError as error:
            if error.is_missing:
                return None
            raise

    async def pages(self, path: str, key: str, query: Mapping[str, str]) -> AsyncIterator[Object]:
        """Yield the entries under `key` of all pages of a list. A 404 is an empty list."""
        requested = dict(query)
        while True:
            page = await self.find(path, requested) or {}
            listed = page.get(key)
            for each in listed if isinstance(listed, list) else []:
                if isinstance(each, dict):
                    yield each
            token = page.get("nextPageToken")
            if not isinstance(token, str) or not token:
                return
            requested["pageToken"] = token

    async def drop(self, path: str, *, doing: str, method: str = "DELETE", query: Query = None) -> Object:
        """Send a delete request. A 404 is success and returns an empty object."""
        try:
            return await self.call(method, path, query=query, doing=doing)
        except RestError as error:
            if error.is_missing:
                return {}
            raise

    async def call(self, method: str, path: str, *, query: Query = None, body: Json = None, doing: str = "") -> Object:
        """Send a JSON request and return the JSON object of the response. Raises RestError, which names the action, and PluginError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        reply = await self._with_retries(method, path, query or {}, {**self._identity, **headers}, data)
        parsed = _parse(reply.text)
        if reply.status >= _SUCCESS_BELOW:
            raise _api_error(reply.status, parsed, reply.text, doing)
        return parsed if isinstance(parsed, dict) else {}

    async def _with_retries(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None
    ) -> TransportReply:
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                reply = await self._transport.send(method, path, query, headers, body)
            except OSError as error:
                if attempt == _MAX_ATTEMPTS:
                    raise PluginError(f"{method} /{path}: {error}. Check that the local cloud is running") from error
            else:
                if reply.status not in _RETRIED or attempt == _MAX_ATTEMPTS:
                    return reply
            await self.pause(attempt)
        raise AssertionError("the last attempt returns or raises")

    async def pause(self, attempt: int) -> None:
        """Wait before the next attempt: exponentially longer, with jitter."""
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (attempt - 1))
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not cryptography

    async def wait(self, path: str, operation: Object, *, limit_s: float, is_done: Callable[[Object], bool]) -> Object:
        """Poll an operation at `path` until `is_done`, and return its last response. Raises PluginError after `limit_s` simulated seconds."""
        ends_at = monotonic() + max(limit_s / self._speed, min(limit_s, _LEAST_WAIT_S))
        pause_s = _FIRST_POLL_S
        while not is_done(operation):
            if monotonic() > ends_at:
                raise PluginError(_timeout_message(operation, limit_s))
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_POLL_S, pause_s * 1.5)
            operation = await self.get(path)
        return operation


def raise_operation_error(operation: Object) -> None:
    """Raise OperationError if a finished operation contains an error, in the format of either API family."""
    error = operation.get("error")
    if not isinstance(error, dict):
        return
    listed = error.get("errors")
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        raise OperationError(None, str(listed[0].get("message", "")))
    raise OperationError(error.get("code"), str(error.get("message", "")))


def _timeout_message(operation: Object, limit_s: float) -> str:
    """Return the real provider's message for a timeout (hashicorp/terraform-plugin-sdk, helper/retry/error.go)."""
    wanted, last = ("DONE", operation["status"]) if "status" in operation else ("done: true", "done: false")
    minutes, seconds = divmod(limit_s, 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds:g}s"
    return f"timeout while waiting for state to become '{wanted}' (last state: '{last}', timeout: {shown})"


def _parse(text: str) -> Json:
    try:
        return cast("Json", json.loads(text)) if text else {}
    except ValueError:
        return None


def _api_error(status: int, parsed: Json, text: str, doing: str) -> RestError:
    error = parsed.get("error") if isinstance(parsed, dict) else None
    if not isinstance(error, dict):
        return RestError(status, text[:200], doing=doing)
    listed = error.get("errors")
    first = listed[0] if isinstance(listed, list) and listed else None
    reason = str(first.get("reason", "")) if isinstance(first, dict) else ""
    return RestError(status, str(error.get("message", "")), reason, doing=doing)
