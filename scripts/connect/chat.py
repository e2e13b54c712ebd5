"""Chat with the model in the terminal: streamed responses, folded thinking, visible tool calls."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TextIO

import requests

from contracts.errors import ScriptError
from contracts.fields import as_mapping
from contracts.plain_text import for_terminal
from loadtest.client.events import DONE, EventSplitter, decoded, error_message, parse_event
from loadtest.client.json_values import as_list

if TYPE_CHECKING:
    from scripts.connect.snippets import Endpoint

_CONNECT_LIMIT_S: Final = 30.0
_SILENCE_LIMIT_S: Final = 600.0
_HELP: Final = "/new: new chat; /thinking: show or fold thinking; /exit or Ctrl-D: quit; Ctrl-C: stop a response."


class ChatError(ScriptError):
    """The server returned no complete response. The message has the cause."""


@dataclass(slots=True)
class Turn:
    """One response, as far as it was received."""

    text: str = ""
    thinking: str = ""
    tools: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])
    """Name and arguments of each tool call, by its index."""
    finish_reason: str = ""
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation. `out`: the responses only. `notes`: everything else."""

    endpoint: "Endpoint"
    max_tokens: int | None
    shows_thinking: bool
    out: TextIO
    notes: TextIO
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def ask(self, prompt: str) -> Turn:
        """Send a prompt, stream the response, and store both.

        Raises:
            ChatError: if the response is incomplete; neither is stored, so that the prompt can be sent again.
            KeyboardInterrupt: after storing the response as far as it was received.
        """
        turn, start_s = Turn(), time.monotonic()
        self.messages.append({"role": "user", "content": prompt})
        try:
            self._stream(turn)
        except ChatError:
            self.messages.pop()
            raise
        except KeyboardInterrupt:
            self._keep(turn)
            raise
        finally:
            if turn.text:
                print(file=self.out, flush=True)
        self._keep(turn)
        self._close(turn, time.monotonic() - start_s)
        return turn

    def _keep(self, turn: Turn) -> None:
        self.messages.append({"role": "assistant", "content": turn.text})

    def _stream(self, turn: Turn) -> None:
        folded = False
        for payload in self._payloads():
            try:
                delta = parse_event(payload)
            except ValueError:  # not an event of this protocol, but a proxy's keep-alive
                continue
            if delta.error is not None:
                raise ChatError(f"The response failed: {delta.error}")
            turn.finish_reason = delta.finish_reason or turn.finish_reason
            turn.output_tokens = turn.output_tokens if delta.usage is None else delta.usage.completion_tokens
            if delta.reasoning:
                turn.thinking += delta.reasoning
                if self.shows_thinking:
                    self._note(delta.reasoning, end="")
                elif not folded:
                    self._note("thinking ...")
                    folded = True
            if delta.text:
                if not turn.text and turn.thinking and self.shows_thinking:
                    self._note("")
                turn.text += delta.text
                print(for_terminal(delta.text), end="", file=self.out, flush=True)
            if delta.tool_call:
                _add_tools(turn, payload)

    def _payloads(self) -> Iterator[bytes]:
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": self.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        split = EventSplitter()
        try:
            with requests.post(
                f"{self.endpoint.base_url}/chat/completions",
                json=body,
                headers={"Authorization": f"Bearer {self.endpoint.key}"},
                stream=True,
                timeout=(_CONNECT_LIMIT_S, _SILENCE_LIMIT_S),
            ) as answer:
                if answer.status_code != HTTPStatus.OK:
                    raise ChatError(
                        f"The server returned {answer.status_code}: {error_message(decoded(answer.content))}"
                    )
                for data in answer.iter_content(None):
                    for payload in split.feed(data):
                        if payload == DONE:
                            return
                        yield payload
        except requests.RequestException as error:
            raise ChatError(f"The response was interrupted ({type(error).__name__}). Send the prompt again.") from None
        raise ChatError("The response was incomplete. Send the prompt again.")

    def _close(self, turn: Turn, elapsed_s: float) -> None:
        for call in turn.tools.values():
            self._note(f"tool call: {call['name']}({call['arguments']})")
        tokens = "" if turn.output_tokens is None else f"{turn.output_tokens} tokens, "
        folded = (
            f", {len(turn.thinking.split())} words of thinking folded"
            if turn.thinking and not self.shows_thinking
            else ""
        )
        cut = "; truncated at --max-tokens" if turn.finish_reason == "length" else ""
        self._note(f"({tokens}{elapsed_s:.1f} s{folded}{cut})")

    def _note(self, text: str, end: str = "\n") -> None:
        dim = ("\033[2m", "\033[0m") if self.notes.isatty() else ("", "")
        print(f"{dim[0]}{for_terminal(text)}{dim[1]}", end=end, file=self.notes, flush=True)


def _add_tools(turn: Turn, payload: bytes) -> None:
    """Add the parts of tool calls in an event. `parse_event` only reports that it has some."""
    choice = as_mapping(as_list(as_mapping(decoded(payload)).get("choices"))[0])
    for part in map(as_mapping, as_list(as_mapping(choice.get("delta")).get("tool_calls"))):
        index = part.get("index")
        call = turn.tools.setdefault(index if isinstance(index, int) else 0, {"name": "", "arguments": ""})
        function = as_mapping(part.get("function"))
        for key in ("name", "arguments"):
            value = function.get(key)
            call[key] += value if isinstance(value, str) else "" if value is None else json.dumps(value)


def talk(chat: Callable[[bool], Chat], read: Callable[[], str | None]) -> None:
    """Read prompts and print responses until the input ends. `chat` creates a conversation with thinking shown or folded."""
    is_shown = False
    current = chat(is_shown)
    print(_HELP, file=sys.stderr)
    while (prompt := read()) is not None:
        words = prompt.strip()
        if words == "/exit":
            return
        if words in {"/new", "/thinking"}:
            is_shown = is_shown if words == "/new" else not is_shown
            kept = [] if words == "/new" else current.messages
            current = chat(is_shown)
            current.messages.extend(kept)
        elif words.startswith("/"):
            print(f"{words.split()[0]} is not a command. {_HELP}", file=sys.stderr)
        elif words:
            try:
                current.ask(words)
            except ChatError as error:
                print(f"connect: {error}", file=sys.stderr)
            except KeyboardInterrupt:
                print("\n(stopped)", file=sys.stderr)
