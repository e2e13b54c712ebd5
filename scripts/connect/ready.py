"""Wait until a server is ready."""

import re
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.scripts.connect.snippets import LocalEndpoint
from gemma_serving.scripts.stack.connection_errors import DENIED, explain_refusal
from loadtest.client.events import served_models
from loadtest.client.openai import ServerError, UnreachableError, call_once

_PERIOD_S: Final = 1.0
_SAID_EVERY_S: Final = 10.0
_ANSWER_LIMIT_S: Final = 60.0
_PLAIN_NAME: Final = re.compile(r"[\w@][\w./:@+-]{0,255}", re.ASCII)
"""Name of a model that code to paste can contain."""


class NotReadyError(ScriptError):
    """The server was not ready in time."""


class OtherModelError(ScriptError):
    """The server names another model than its stack, or a name that is not safe to paste."""


def wait_until_ready(
    base_url: str, key: str, limit_s: float, say: Callable[[str], None], *, served: str | None
) -> LocalEndpoint:
    """Poll /v1/models until the server responds, and report its last response every 10 s. Return it with its model.

    `served` is the model in the stack's state, None without a stack.
    Raises NotReadyError after `limit_s` seconds, and immediately for a permanent error; OtherModelError for another model than `served`.
    """
    start_s = said_s = time.monotonic()
    while True:
        models, last = _query(base_url, key, say)
        if models:
            return LocalEndpoint(base_url=base_url, key=key, model=_required(models, served))
        now_s = time.monotonic()
        if now_s - start_s >= limit_s:
            raise NotReadyError(
                f"The server was not ready within {limit_s:.0f} s: {last} Set a longer --ready-timeout or run `gemma smoke`."
            )
        if now_s - said_s >= _SAID_EVERY_S:
            said_s = now_s
            say(f"{now_s - start_s:.0f}s: waiting for the server: {last}")
        time.sleep(_PERIOD_S)


def _required(models: Sequence[str], served: str | None) -> str:
    """Return the model to use. A server's own words must not become code that the user runs."""
    named = models[0] if served is None else served
    if named in models and _PLAIN_NAME.fullmatch(named):
        return named
    given = f"The server names its model {models[0][:80]!r}"
    if served is None:
        raise OtherModelError(f"{given}; a name has only letters, digits and ./:@+-_. Do not use this server.")
    raise OtherModelError(
        f"{given}, but the stack's state has {served!r}. If you did not change the model, treat the server as compromised."
    )


def _query(base_url: str, key: str, say: Callable[[str], None]) -> tuple[Sequence[str], str]:
    """Return the models of a ready server, else the reason."""
    headers = {"Authorization": f"Bearer {key}"}
    try:
        answer = call_once(base_url, lambda: headers, "GET", "/models", limit_s=_ANSWER_LIMIT_S)
    except UnreachableError as error:
        return (), str(error)
    except ServerError as error:
        raise NotReadyError(str(error)) from None
    if answer.status in DENIED:
        raise NotReadyError(explain_refusal(answer))
    if answer.status != HTTPStatus.OK:
        return (), explain_refusal(answer)
    models = served_models(answer.body)
    if not models:
        return (), "its list of models is unreadable."
    if answer.simulated:
        say("the model server is simulated, so no model responds")
    return [model.id for model in models], ""
