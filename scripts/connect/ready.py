"""Wait until a server answers."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import requests

from contracts.errors import ScriptError
from loadtest.client.events import SIMULATED_HEADER, decoded, error_message, served_models

_PERIOD_S: Final = 1.0
_SAID_EVERY_S: Final = 10.0
_ANSWER_LIMIT_S: Final = 60.0


class NotReadyError(ScriptError):
    """The server did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyServer:
    """What a server says about itself."""

    model: str
    is_simulated: bool


def wait_until_ready(base_url: str, key: str, limit_s: float, say: Callable[[str], None]) -> ReadyServer:
    """Return what the server serves as soon as it answers /v1/models, and say every few seconds what it answers until then.

    Raises NotReadyError after `limit_s` seconds, and at once for an answer that no waiting changes.
    """
    start_s = said_s = time.monotonic()
    while True:
        served, answered = _asked(base_url, key)
        if served is not None:
            return served
        now_s = time.monotonic()
        if now_s - start_s >= limit_s:
            raise NotReadyError(
                f"the server was not ready within {limit_s:.0f} s: {answered} Wait longer with --ready-timeout, or ask `scripts.smoke` what is wrong."
            )
        if now_s - said_s >= _SAID_EVERY_S:
            said_s = now_s
            say(f"{now_s - start_s:.0f}s: the server is not ready: {answered}")
        time.sleep(_PERIOD_S)


def _asked(base_url: str, key: str) -> tuple[ReadyServer | None, str]:
    headers = {"Authorization": f"Bearer {key}"}
    try:
        answer = requests.get(f"{base_url}/models", headers=headers, timeout=_ANSWER_LIMIT_S)
    except requests.RequestException as error:
        return None, f"no answer ({type(error).__name__})."
    if answer.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise NotReadyError(
            f"the server answers {answer.status_code}: {_message(answer)} On Cloud Run your account needs roles/run.invoker (`cloudRun.invokers`); "
            "a grant of the last minutes works after two minutes as a rule, and after seven at most."
        )
    if answer.status_code != HTTPStatus.OK:
        return None, f"HTTP {answer.status_code}, {_message(answer)}"
    models = served_models(decoded(answer.content))
    if not models:
        return None, "its list of models cannot be read."
    return ReadyServer(model=models[0].id, is_simulated=SIMULATED_HEADER in answer.headers), ""


def _message(answer: requests.Response) -> str:
    """Return the reason of an answer as one sentence."""
    return f"{error_message(decoded(answer.content)).rstrip('.') or 'no reason given'}."
