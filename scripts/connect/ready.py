"""Wait until a server is ready."""

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import requests

from contracts.errors import ScriptError
from loadtest.client.events import SIMULATED_HEADER, decoded, error_message, served_models
from scripts.cli.reach import DENIED, denied
from scripts.connect.snippets import Endpoint

_PERIOD_S: Final = 1.0
_SAID_EVERY_S: Final = 10.0
_ANSWER_LIMIT_S: Final = 60.0


class NotReadyError(ScriptError):
    """The server was not ready in time."""


def wait_until_ready(base_url: str, key: str, limit_s: float, say: Callable[[str], None]) -> Endpoint:
    """Poll /v1/models until the server responds, and report its last response every 10 s. Return it with its model.

    Raises NotReadyError after `limit_s` seconds, and immediately for a permanent error.
    """
    start_s = said_s = time.monotonic()
    while True:
        model, last = _query(base_url, key, say)
        if model:
            return Endpoint(base_url=base_url, key=key, model=model)
        now_s = time.monotonic()
        if now_s - start_s >= limit_s:
            raise NotReadyError(
                f"The server was not ready within {limit_s:.0f} s: {last} Set a longer --ready-timeout or run `gemma smoke`."
            )
        if now_s - said_s >= _SAID_EVERY_S:
            said_s = now_s
            say(f"{now_s - start_s:.0f}s: waiting for the server: {last}")
        time.sleep(_PERIOD_S)


def _query(base_url: str, key: str, say: Callable[[str], None]) -> tuple[str, str]:
    """Return the model of a ready server, else the reason."""
    headers = {"Authorization": f"Bearer {key}"}
    try:
        answer = requests.get(f"{base_url}/models", headers=headers, timeout=_ANSWER_LIMIT_S)
    except requests.RequestException as error:
        return "", f"no response ({type(error).__name__})."
    if answer.status_code in DENIED:
        raise NotReadyError(denied(answer.status_code, _message(answer)))
    if answer.status_code != HTTPStatus.OK:
        return "", f"HTTP {answer.status_code}, {_message(answer)}"
    models = served_models(decoded(answer.content))
    if not models:
        return "", "its list of models is unreadable."
    if SIMULATED_HEADER in answer.headers:
        say("the model server is simulated, so no model responds")
    return models[0].id, ""


def _message(answer: requests.Response) -> str:
    return f"{error_message(decoded(answer.content)).rstrip('.') or 'no reason given'}."
