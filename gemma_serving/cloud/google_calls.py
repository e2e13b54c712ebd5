"""Google REST calls that the program makes outside the provider: few, without retries, each with a time limit."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from http import HTTPStatus
from typing import Literal, TypeAlias

from gemma_serving.cloud.google_session import (
    GoogleCallError,
    NoConnectionError,
    NotJsonError,
    RejectedLoginError,
    endpoint,
    open_session,
    sent,
)

__all__ = ["GoogleCallError", "call", "call_now", "endpoint"]

Json: TypeAlias = Mapping[str, object]


async def call(api: str, path: str, *, project: str, limit_s: float, body: Json | None = None) -> Json:
    """Return the response of a GET, or of a POST if a body is passed. Raises GoogleCallError, even after `limit_s` seconds."""
    work = _started(endpoint(api) + path, project, body, limit_s)
    try:  # not in the loop's executor, whose threads may all wait for the hook that awaits this
        return await asyncio.wait_for(asyncio.wrap_future(work), limit_s)
    except TimeoutError:
        raise GoogleCallError(0, f"no response within {limit_s:.0f} s") from None


def call_now(
    api: str, path: str, *, project: str, limit_s: float, body: Json | None = None, verb: Literal["PATCH"] | None = None
) -> Json:
    """Return the result of `call`, or of a request with another verb, while the program waits before it declares anything.

    Raises GoogleCallError, including after `limit_s` seconds without a response.
    """
    work = _started(endpoint(api) + path, project, body, limit_s, verb)
    try:
        return work.result(limit_s)
    except TimeoutError:
        raise GoogleCallError(0, f"no response within {limit_s:.0f} s") from None


def _ask(url: str, project: str, body: Json | None, limit_s: float, verb: str | None = None) -> Json:
    import google.auth.exceptions  # noqa: PLC0415 - slow to load, and few runs need it
    import requests  # noqa: PLC0415 - as above

    try:
        return sent(open_session(project), verb or ("GET" if body is None else "POST"), url, json=body, timeout=limit_s)
    except (requests.RequestException, google.auth.exceptions.TransportError) as error:
        raise GoogleCallError(0, NoConnectionError(url, error).problem) from None
    except google.auth.exceptions.GoogleAuthError as error:
        raise GoogleCallError(0, RejectedLoginError(error).problem) from None
    except NotJsonError:
        raise GoogleCallError(HTTPStatus.OK, "a response that is not JSON") from None


def _started(url: str, project: str, body: Json | None, limit_s: float, verb: str | None = None) -> "Future[Json]":
    """Return the future response, from a thread that no caller waits for after the limit.

    A request's own timeout does not stop a trickling response, and threads of an executor are waited for.
    """
    future: Future[Json] = Future()

    def run() -> None:
        with suppress(InvalidStateError):  # the caller no longer waits
            try:
                future.set_result(_ask(url, project, body, limit_s, verb))
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                future.set_exception(error)

    threading.Thread(target=run, name="google-call", daemon=True).start()
    return future
