"""Chat with the model in the terminal: streamed responses, files, thinking apart, and the speed of each response."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

from contracts.errors import CommandRefusedError
from contracts.plain_text import for_terminal
from loadtest.client.media import MediaKind
from scripts.connect.attachments import KINDS, Attachment, attached
from scripts.connect.response import ChatError, Turn, streamed
from scripts.connect.snippets import Endpoint

_HELP: Final = """\
/new: new chat; /image FILE, /audio FILE, /video FILE: send with the next prompt;
/thinking: show or fold thinking; /thinking on, /thinking off: request it or not;
/exit or Ctrl-D: quit; Ctrl-C: stop a response."""


@dataclass(slots=True, kw_only=True)
class Chat:
    """A conversation. `out`: the responses only. `notes`: everything else."""

    endpoint: Endpoint
    out: TextIO
    notes: TextIO
    max_tokens: int | None = None
    shows_thinking: bool = False
    thinks: bool | None = None
    """Whether the model should think; None leaves it to the server."""
    system: str | None = None
    messages: list[dict[str, object]] = field(default_factory=list[dict[str, object]])

    def ask(self, prompt: str, files: Sequence[Attachment] = ()) -> Turn:
        """Send a prompt with its files, stream the response, and store both.

        Raises:
            ChatError: if the server rejects the request, or if the response is incomplete. Nothing is stored, so that the prompt can be
                sent again.
            KeyboardInterrupt: after storing the response as far as it was received.
        """
        before = len(self.messages)
        text: dict[str, object] = {"type": "text", "text": prompt}
        content: object = [*(dict(file.part) for file in files), text] if files else prompt
        self.messages.append({"role": "user", "content": content})
        turn = Turn()
        start_s = time.monotonic()
        try:
            self._show(turn)
        except ChatError:
            del self.messages[before:]
            raise
        except KeyboardInterrupt:
            self.messages.append({"role": "assistant", "content": turn.text})
            raise
        finally:
            if turn.text:
                print(file=self.out, flush=True)
        self.messages.append({"role": "assistant", "content": turn.text})
        self._note(f"({self._figures(turn, time.monotonic() - start_s)})")
        return turn

    def _show(self, turn: Turn) -> None:
        """Print a response as it arrives: the thinking to the notes, under a heading of its own."""
        is_thinking = False
        for delta in streamed(self.endpoint, self._body(), turn):
            if delta.reasoning:
                if not is_thinking:
                    self._note("thinking:" if self.shows_thinking else "thinking ...")
                    is_thinking = True
                if self.shows_thinking:
                    self._note(delta.reasoning, end="")
            if is_thinking and self.shows_thinking and (delta.text or delta.finish_reason):
                self._note("\n")
                is_thinking = False
            print(for_terminal(delta.text), end="", file=self.out, flush=True)

    def _body(self) -> dict[str, object]:
        system: list[dict[str, object]] = [] if self.system is None else [{"role": "system", "content": self.system}]
        body: dict[str, object] = {"model": self.endpoint.model, "messages": [*system, *self.messages]}
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if self.thinks is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinks}
        return body

    def _figures(self, turn: Turn, elapsed_s: float) -> str:
        rate = turn.tokens_per_s
        parts = [] if turn.first_s is None else [f"first token {turn.first_s:.2f} s"]
        parts += [] if turn.output_tokens is None else [f"{turn.output_tokens} tokens"]
        parts += [] if rate is None else [f"{rate:.1f} tokens/s"]
        parts.append(f"{elapsed_s:.1f} s")
        if turn.thinking and not self.shows_thinking:
            parts.append(f"{len(turn.thinking.split())} words of thinking folded")
        limit = "--max-tokens" if self.max_tokens is not None else "the server's length limit"
        return ", ".join(parts) + (f"; truncated at {limit}" if turn.finish_reason == "length" else "")

    def _note(self, text: str, end: str = "\n") -> None:
        dim = ("\033[2m", "\033[0m") if self.notes.isatty() else ("", "")
        print(f"{dim[0]}{for_terminal(text)}{dim[1]}", end=end, file=self.notes, flush=True)


def talk(
    chat: Chat, read: Callable[[], str | None], files: Sequence[Attachment] = (), *, most_request_bytes: int
) -> None:
    """Read prompts and print responses until the input ends. `files` go with the first prompt."""
    print(_HELP, file=sys.stderr)
    waiting = list(files)
    while (line := read()) is not None:
        words = line.strip()
        command, _, rest = words.partition(" ")
        kind: MediaKind | None = next((kind for kind in KINDS if command == f"/{kind}"), None)
        try:
            if words == "/exit":
                return
            if kind is not None:
                waiting.append(attached(Path(rest.strip()).expanduser(), kind, most_request_bytes))
                print(f"attached: {waiting[-1].shown}", file=sys.stderr)
            elif words.startswith("/"):
                _change(chat, words)
            elif words:
                sending, waiting = waiting, list[Attachment]()
                chat.ask(words, sending)
        except (ChatError, CommandRefusedError) as error:
            print(f"connect: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)


def _change(chat: Chat, words: str) -> None:
    """Change the conversation by a command."""
    match words.split():
        case ["/new"]:
            chat.messages.clear()
        case ["/thinking"]:
            chat.shows_thinking = not chat.shows_thinking
        case ["/thinking", "on" | "off" as wanted]:
            chat.thinks = wanted == "on"
        case _:
            print(f"{words.split(maxsplit=1)[0]} is not a command. {_HELP}", file=sys.stderr)
