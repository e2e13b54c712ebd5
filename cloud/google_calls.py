"""Calls of the program to Google's REST APIs beside those of the provider: few, without retries, each within a time limit.

Endpoints and credentials come from the environment, as for gcloud and the provider.
"""

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from cloud.google_session import open_session

if TYPE_CHECKING:  # slow to load, and few runs need it
    import requests

T = TypeVar("T")


class GoogleCallError(Exception):
    """A call that gave no answer to work with: the HTTP status (0 if there was none), Google's message and machine-readable reason."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


def endpoint(api: str) -> str:
    """Return an API's root URL with a trailing slash: CLOUDSDK_API_ENDPOINT_OVERRIDES_<API>, else Google's.

    For Cloud Storage and Compute Engine, gcloud expects `storage/v1/` and `compute/v1/` at the end of the variable; the root is without them.
    """
    override = os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}", "").rstrip("/")
    return f"{override.removesuffix(f'/{api}/v1')}/" if override else f"https://{api}.googleapis.com/"


async def call(
    api: str,
    path: str,
    *,
    project: str,
    limit_s: float,
    body: Mapping[str, object] | None = None,
    verb: str | None = None,
) -> Mapping[str, object]:
    """Return the answer of a GET, or of a POST if there is a body, or of another verb. Raises GoogleCallError, also after `limit_s` seconds.

    The call counts for the project: its quota and its enabled APIs.
    """
    try:
        return await _within(limit_s, partial(_ask, endpoint(api) + path, project, body, limit_s, verb))
    except TimeoutError:
        raise GoogleCallError(0, f"no answer within {limit_s:.0f} s") from None


def call_now(
    api: str,
    path: str,
    *,
    project: str,
    limit_s: float,
    body: Mapping[str, object] | None = None,
    verb: str | None = None,
    headers: MutableMapping[str, str] | None = None,
) -> Mapping[str, object]:
    """Return what `call` returns while the program waits, before it declares anything. Raises GoogleCallError, also after `limit_s` seconds.

    The headers of the answer are added to `headers`.
    """
    answers: queue.SimpleQueue[Mapping[str, object] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(_ask(endpoint(api) + path, project, body, limit_s, verb, headers=headers))
        except Exception as error:  # noqa: BLE001 - it belongs to who waits
            answers.put(error)

    threading.Thread(target=run, name="google-call", daemon=True).start()
    try:
        answer = answers.get(timeout=limit_s)
    except queue.Empty:
        raise GoogleCallError(0, f"no answer within {limit_s:.0f} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _ask(
    url: str,
    project: str,
    body: Mapping[str, object] | None,
    limit_s: float,
    verb: str | None = None,
    *,
    headers: MutableMapping[str, str] | None = None,
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
    if headers is not None:
        headers.update(answer.headers)
    if not answer.ok:
        raise _refusal(answer)
    try:
        return cast("Mapping[str, object]", answer.json())
    except ValueError:
        raise GoogleCallError(answer.status_code, "an answer that is not JSON") from None


def _refusal(answer: "requests.Response") -> GoogleCallError:
    message, reason = f"HTTP {answer.status_code}", ""
    # A body that is not Google's error format says nothing more than the status.
    with suppress(ValueError, KeyError, TypeError):
        error = cast("Mapping[str, object]", answer.json()["error"])
        message = str(error.get("message") or message)
        details = cast("list[Mapping[str, object]]", error.get("details") or [])
        reason = next((str(detail["reason"]) for detail in details if "reason" in detail), "")
    return GoogleCallError(answer.status_code, message, reason)


async def _within(limit_s: float, work: Callable[[], T]) -> T:
    """Return what `work` returns in a thread that nobody waits for after the limit. Raises TimeoutError.

    A request's own timeout does not end an answer that trickles, and the interpreter waits for threads of an executor.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("T", result))

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it belongs to who waits
            failure = error
        # The loop is closed if nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=run, name="google-call", daemon=True).start()
    return await asyncio.wait_for(done, limit_s)
