"""Google REST calls that the program makes outside the provider: few, without retries, each with a time limit.

Endpoints and credentials come from the environment, as for gcloud and the provider.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TypeAlias, cast

from cloud.clock import GOOGLE_CLOCK
from cloud.google_session import GoogleCallError, endpoint, open_session, refusal_in

__all__ = ["GoogleCallError", "call", "call_now", "endpoint"]

Answer: TypeAlias = Mapping[str, object]


async def call(
    api: str,
    path: str,
    *,
    project: str,
    limit_s: float,
    body: Mapping[str, object] | None = None,
    verb: str | None = None,
) -> Mapping[str, object]:
    """Return the response of a GET, of a POST if there is a body, or of another verb.

    The project is the quota project. Raises GoogleCallError, including after `limit_s` seconds.
    """
    work = _started(partial(_ask, endpoint(api) + path, project, body, limit_s, verb))
    try:
        return await asyncio.wait_for(asyncio.wrap_future(work), limit_s)
    except TimeoutError:
        raise _late(limit_s) from None


def call_now(
    api: str,
    path: str,
    *,
    project: str,
    limit_s: float,
    body: Mapping[str, object] | None = None,
    verb: str | None = None,
) -> Mapping[str, object]:
    """Return the result of `call` while the program waits. Raises GoogleCallError as `call` does."""
    work = _started(partial(_ask, endpoint(api) + path, project, body, limit_s, verb))
    try:
        return work.result(limit_s)
    except TimeoutError:
        raise _late(limit_s) from None


def _late(limit_s: float) -> GoogleCallError:
    return GoogleCallError(0, f"no response within {limit_s:.0f} s")


def _ask(
    url: str,
    project: str,
    body: Mapping[str, object] | None,
    limit_s: float,
    verb: str | None = None,
) -> Mapping[str, object]:
    import google.auth.exceptions  # noqa: PLC0415 - slow to load, and few runs need it
    import requests  # noqa: PLC0415 - as above

    try:
        answer = open_session(project).request(
            verb or ("GET" if body is None else "POST"), url, json=body, timeout=limit_s
        )
    except google.auth.exceptions.GoogleAuthError as error:
        raise GoogleCallError(0, f"the credentials do not work: {str(error).splitlines()[0]}") from None
    except requests.RequestException as error:
        raise GoogleCallError(0, f"no connection to {url.partition('?')[0]} ({type(error).__name__})") from None
    GOOGLE_CLOCK.see(answer.headers.get("Date"))
    if not answer.ok:
        raise GoogleCallError(answer.status_code, *refusal_in(answer))
    try:
        return cast("Mapping[str, object]", answer.json())
    except ValueError:
        raise GoogleCallError(answer.status_code, "a response that is not JSON") from None


def _started(work: Callable[[], Answer]) -> "Future[Answer]":
    """Return the future result of `work`, in a thread that no caller waits for after the limit.

    A request's own timeout does not stop a trickling response, and threads of an executor are waited for.
    """
    future: Future[Answer] = Future()

    def run() -> None:
        with suppress(InvalidStateError):  # the caller no longer waits
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                future.set_exception(error)

    threading.Thread(target=run, name="google-call", daemon=True).start()
    return future
