"""One streamed response: text, thinking and times."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import requests

from contracts.errors import ScriptError
from loadtest.client.events import DONE, Delta, EventSplitter, decode_rate, decoded, error_message, parse_event
from scripts.connect.snippets import Endpoint

_CONNECT_LIMIT_S: Final = 30.0
_SILENCE_LIMIT_S: Final = 600.0
_MEDIA_LIMIT: Final = "may be provided in one prompt"
"""vLLM's words about more images, sounds or videos than it accepts."""
_MEDIA_HINT: Final = (
    "Set the limits of `vllm.multimodal` in the settings file and run `gemma up`, or start again with /new."
)


class ChatError(ScriptError):
    """The server returned no complete response. The message has the cause."""


@dataclass(slots=True)
class Turn:
    """One response, as far as it was received. Times are seconds since the request was sent."""

    text: str = ""
    thinking: str = ""
    finish_reason: str = ""
    output_tokens: int | None = None
    first_s: float | None = None
    last_s: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens after the first, divided by their time; None with fewer than two, or without counts."""
        return decode_rate(self.output_tokens, self.first_s, self.last_s)


def streamed(endpoint: Endpoint, body: Mapping[str, object], turn: Turn) -> Iterator[Delta]:
    """Send a request, and yield each event of its response after adding it to the turn. Raises ChatError."""
    start_s = time.monotonic()
    for payload in _payloads(endpoint, body):
        try:
            delta = parse_event(payload)
        except ValueError:  # not an event of this protocol, but a proxy's keep-alive
            continue
        if delta.error is not None:
            raise ChatError(f"The response failed: {delta.error}")
        at_s = time.monotonic() - start_s
        if delta.generated and turn.first_s is None:
            turn.first_s = at_s
        if delta.has_choice and turn.first_s is not None:
            turn.last_s = at_s
        turn.text += delta.text
        turn.thinking += delta.reasoning
        turn.finish_reason = delta.finish_reason or turn.finish_reason
        turn.output_tokens = turn.output_tokens if delta.usage is None else delta.usage.completion_tokens
        yield delta


def _payloads(endpoint: Endpoint, body: Mapping[str, object]) -> Iterator[bytes]:
    split = EventSplitter()
    try:
        with requests.post(
            f"{endpoint.base_url}/chat/completions",
            json={**body, "stream": True, "stream_options": {"include_usage": True}},
            headers={"Authorization": f"Bearer {endpoint.key}"},
            stream=True,
            timeout=(_CONNECT_LIMIT_S, _SILENCE_LIMIT_S),
        ) as answer:
            if answer.status_code != HTTPStatus.OK:
                said = error_message(decoded(answer.content))
                hint = f"{'' if said.endswith('.') else '.'} {_MEDIA_HINT}" if _MEDIA_LIMIT in said else ""
                raise ChatError(f"The server returned {answer.status_code}: {said}{hint}")
            for data in answer.iter_content(None):
                for payload in split.feed(data):
                    if payload == DONE:
                        return
                    yield payload
    except requests.RequestException as error:
        raise ChatError(f"The response was interrupted ({type(error).__name__}). Send the prompt again.") from None
    raise ChatError("The response was incomplete. Send the prompt again.")
