"""One streamed response: text, thinking, tool calls and times."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import requests

from contracts.errors import ScriptError
from contracts.fields import as_mapping
from loadtest.client.events import DONE, Delta, EventSplitter, decode_rate, decoded, error_message, parse_event
from loadtest.client.json_values import as_list
from scripts.connect.snippets import Endpoint

_CONNECT_LIMIT_S: Final = 30.0
_SILENCE_LIMIT_S: Final = 600.0


class ChatError(ScriptError):
    """The server returned no complete response. The message has the cause."""


@dataclass(slots=True)
class Turn:
    """One response, as far as it was received. Times are seconds since the request was sent."""

    text: str = ""
    thinking: str = ""
    tools: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])
    """Id, name and arguments of each tool call, by its index."""
    finish_reason: str = ""
    output_tokens: int | None = None
    first_s: float | None = None
    last_s: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens after the first, divided by their time; None with fewer than two, or without counts."""
        return decode_rate(self.output_tokens, self.first_s, self.last_s)

    def message(self) -> dict[str, object]:
        """Return the response as a message for the next request.

        With tool calls, it includes the thinking: Gemma's chat template repeats the thinking of a turn until the tools have answered.
        """
        if not self.tools:
            return {"role": "assistant", "content": self.text}
        calls = [
            {"id": call["id"], "type": "function", "function": {key: call[key] for key in ("name", "arguments")}}
            for call in self.tools.values()
        ]
        thinking: dict[str, object] = {"reasoning": self.thinking} if self.thinking else {}
        return {"role": "assistant", "content": self.text, "tool_calls": calls, **thinking}


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
        if delta.tool_call:
            _add_tools(turn, payload)
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
                raise ChatError(f"The server returned {answer.status_code}: {error_message(decoded(answer.content))}")
            for data in answer.iter_content(None):
                for payload in split.feed(data):
                    if payload == DONE:
                        return
                    yield payload
    except requests.RequestException as error:
        raise ChatError(f"The response was interrupted ({type(error).__name__}). Send the prompt again.") from None
    raise ChatError("The response was incomplete. Send the prompt again.")


def _add_tools(turn: Turn, payload: bytes) -> None:
    """Add the parts of tool calls in an event. `parse_event` only reports that it has some."""
    choice = as_mapping(as_list(as_mapping(decoded(payload)).get("choices"))[0])
    for part in map(as_mapping, as_list(as_mapping(choice.get("delta")).get("tool_calls"))):
        index = part.get("index")
        call = turn.tools.setdefault(index if isinstance(index, int) else 0, {"id": "", "name": "", "arguments": ""})
        call["id"] += str(part.get("id") or "")
        function = as_mapping(part.get("function"))
        for key in ("name", "arguments"):
            value = function.get(key)
            call[key] += value if isinstance(value, str) else "" if value is None else json.dumps(value)
