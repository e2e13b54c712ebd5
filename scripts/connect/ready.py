"""Wait until a server is ready."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import requests

from contracts.errors import ScriptError
from loadtest.client.events import SIMULATED_HEADER, decoded, error_message, served_models
from scripts.cli.reach import DENIED, denied

_PERIOD_S: Final = 1.0
_SAID_EVERY_S: Final = 10.0
_ANSWER_LIMIT_S: Final = 60.0


class NotReadyError(ScriptError):
    """The server was not ready in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyServer:
    """Model of a ready server, and whether it is simulated."""

    model: str
    is_simulated: bool


def wait_until_ready(base_url: str, key: str, limit_s: float, say: Callable[[str], None]) -> ReadyServer:
    """Poll /v1/models until the server responds, and report its last response every 10 s. Return its model.

    Raises NotReadyError after `limit_s` seconds, and immediately for a permanent error.
    """
    start_s = said_s = time.monotonic()
    while True:
        served, last = _query(base_url, key)
        if served is not None:
            return served
        now_s = time.monotonic()
        if now_s - start_s >= limit_s:
            raise NotReadyError(
                f"The server was not ready within {limit_s:.0f} s: {last} Set a longer --ready-timeout or run `gemma smoke`."
            )
        if now_s - said_s >= _SAID_EVERY_S:
            said_s = now_s
            say(f"{now_s - start_s:.0f}s: waiting for the server: {last}")
        time.sleep(_PERIOD_S)


def _query(base_url: str, key: str) -> tuple[ReadyServer | None, str]:
    headers = {"Authorization": f"Bearer {key}"}
    try:
        answer = requests.get(f"{base_url}/models", headers=headers, timeout=_ANSWER_LIMIT_S)
    except requests.RequestException as error:
        return None, f"no response ({type(error).__name__})."
    if answer.status_code in DENIED:
        raise NotReadyError(denied(answer.status_code, _message(answer)))
    if answer.status_code != HTTPStatus.OK:
        return None, f"HTTP {answer.status_code}, {_message(answer)}"
    models = served_models(decoded(answer.content))
    if not models:
        return None, "its list of models is unreadable."
    return ReadyServer(model=models[0].id, is_simulated=SIMULATED_HEADER in answer.headers), ""


def _message(answer: requests.Response) -> str:
    """Return the error message of a response as one sentence."""
    return f"{error_message(decoded(answer.content)).rstrip('.') or 'no reason given'}."
