"""The server of a batch: reached through a connection that is reopened, and asked again only if it has not processed a request.

A completion has no effect besides its cost. So a request is repeated only if it was not sent (no connection), or if the server
declined it: 429, or 503 with Retry-After. Any other failure leaves the request without a response, for the next run.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay
from tenacity.wait import wait_exponential_jitter

from contracts.errors import CommandRefusedError, ScriptError
from loadtest.client.events import ServedModel, served_models
from loadtest.client.openai import NotConnectedError, OpenAIClient, ServerAnswer, UnreachableError
from loadtest.client.wire import retry_after_s
from scripts.cli.access import ServerAccess
from scripts.cli.reach import DENIED, denied
from scripts.connect.face import Upstream

_CHECK_PERIOD_S: Final = 0.5
_READY_PERIOD_S: Final = 2.0
_REPORT_PERIOD_S: Final = 10.0
_PROBE_LIMIT_S: Final = 60.0
_BACKOFF: Final = wait_exponential_jitter(initial=1.0, max=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """A request without a response, and the reason as a clause."""

    reason: str


class _DeclinedError(Exception):
    """The server has not processed the request. It can be sent again after `wait_s`."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class BatchServer:
    """Client of the server, used as an asynchronous context manager."""

    def __init__(
        self, upstream: Upstream, report: Callable[[str], None], *, ready_limit_s: float, request_limit_s: float
    ) -> None:
        self._upstream, self._report = upstream, report
        self._ready_limit_s, self._request_limit_s = ready_limit_s, request_limit_s
        self._clients = AsyncExitStack()
        self._current: tuple[ServerAccess, OpenAIClient] | None = None
        self._opening, self._waiting = asyncio.Lock(), asyncio.Lock()
        self._said_s = time.monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._clients.aclose()

    async def ready(self) -> tuple[list[ServedModel], str | None]:
        """Wait until the server lists its models. Return them, and the simulator's name if the server is simulated.

        Raises ScriptError after the limit, and immediately if it rejects the caller.
        """
        async with self._waiting:
            start_s = said_s = time.monotonic()
            while True:
                last, answer = "no response", None
                try:
                    answer = await self._call("GET", "/v1/models", None, _PROBE_LIMIT_S)
                    last = f"HTTP {answer.status}, {answer.message}"
                except UnreachableError as error:
                    last = str(error)
                models = served_models(answer.body) if answer and answer.status == HTTPStatus.OK else []
                if answer is not None and models:
                    return models, answer.simulated
                now_s = time.monotonic()
                if now_s - start_s >= self._ready_limit_s:
                    raise CommandRefusedError(
                        f"The server was not ready within {self._ready_limit_s:.0f} s: {last.rstrip('.')}. Set a longer --ready-timeout or "
                        "run `python -m scripts.smoke`."
                    )
                if now_s - said_s >= _REPORT_PERIOD_S:
                    said_s = now_s
                    self._report(f"{now_s - start_s:.0f}s: waiting for the server: {last}")
                await asyncio.sleep(_READY_PERIOD_S)

    async def send(self, path: str, body: object) -> ServerAnswer | Unanswered:
        """Return the response to a request, or why it has none. Raises ScriptError if the server rejects the caller."""
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(_DeclinedError),
                wait=_pause,
                stop=stop_after_delay(self._ready_limit_s),
                before_sleep=self._report_wait,
                reraise=True,
            ):
                with attempt:
                    return _judged(await self._call("POST", path, body, self._request_limit_s))
        except (_DeclinedError, UnreachableError) as error:
            return Unanswered(reason=str(error))
        raise AssertionError("the loop returns a value or raises")

    def _report_wait(self, state: RetryCallState) -> None:
        """Report that requests wait for the server, now and then: all of them wait for the same reason."""
        now_s = time.monotonic()
        if now_s - self._said_s >= _REPORT_PERIOD_S:
            self._said_s = now_s
            error = state.outcome.exception() if state.outcome else None
            self._report(f"waiting for the server: {str(error).rstrip('.')}")

    async def _call(self, method: str, path: str, body: object, limit_s: float) -> ServerAnswer:
        """Send one request, with a new identity token if the server rejects the old one."""
        for may_renew in (True, False):
            access, client = await self._client()
            try:
                answer = await client.request(method, path, body=body, limit_s=limit_s)
            except NotConnectedError as error:
                if method == "GET":
                    raise
                raise _DeclinedError(str(error)) from None
            if answer.status not in DENIED:
                return answer
            if not (may_renew and answer.status == HTTPStatus.UNAUTHORIZED and await asyncio.to_thread(access.renew)):
                raise CommandRefusedError(denied(answer.status, answer.message))
        raise AssertionError("the second response is returned or refused")

    async def _client(self) -> tuple[ServerAccess, OpenAIClient]:
        """Return the connection and its client. A reopened tunnel has another one; responses of the old one may still arrive."""
        async with self._opening:
            start_s = time.monotonic()
            while (access := self._upstream.access(0)) is None:
                if time.monotonic() - start_s >= self._ready_limit_s:
                    raise ScriptError(f"The tunnel was not reopened within {self._ready_limit_s:.0f} s.")
                await asyncio.sleep(_CHECK_PERIOD_S)
            if self._current is None or self._current[0] is not access:
                client = await self._clients.enter_async_context(OpenAIClient(access.base_url, access.headers))
                self._current = (access, client)
            return self._current


def _judged(answer: ServerAnswer) -> ServerAnswer | Unanswered:
    """Return a response that belongs to the request: a completion, or the server's refusal of this request (4xx).

    Raises _DeclinedError if the request can be sent again.
    """
    text = f"HTTP {answer.status}: {answer.message}"
    if answer.status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        wait_s = retry_after_s(answer.headers.get("retry-after", ""), answer.headers.get("date", ""))
        if wait_s is not None or answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise _DeclinedError(text, wait_s or 0.0)
    if not isinstance(answer.body, dict):
        return Unanswered(reason=f"HTTP {answer.status}, but the response is not JSON: {answer.message}")
    is_final = answer.status == HTTPStatus.OK or HTTPStatus.BAD_REQUEST <= answer.status < 500  # noqa: PLR2004 - 4xx
    return answer if is_final and answer.status != HTTPStatus.REQUEST_TIMEOUT else Unanswered(reason=text)


def _pause(state: RetryCallState) -> float:
    """Return the seconds before the next attempt: those of Retry-After, if they are more than the usual ones."""
    error = state.outcome.exception() if state.outcome else None
    return max(_BACKOFF(state), error.wait_s if isinstance(error, _DeclinedError) else 0.0)
