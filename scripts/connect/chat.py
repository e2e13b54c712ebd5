"""Chat with the model in the terminal: streamed responses, files, thinking apart, and the times of each response."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.engine.children import run_async
from gemma_serving.scripts.cli.command import print_text
from gemma_serving.scripts.connect.proxy import MAX_BODY_BYTES
from gemma_serving.scripts.connect.snippets import LocalEndpoint
from loadtest.client.events import Delta
from loadtest.client.media import MediaError, MediaKind, media_part
from loadtest.client.openai import OpenAIClient, ServerError, Streamed, UnreachableError

_HELP: Final = """\
/new: new chat; /image FILE, /audio FILE, /video FILE: send with the next prompt;
/thinking: show or fold thinking; /thinking on, /thinking off: request it or not;
/exit or Ctrl-D: quit; Ctrl-C: stop a response."""
_LIMIT_S: Final = 7200.0
_SILENCE_LIMIT_S: Final = 600.0
_MEDIA_LIMIT: Final = "may be provided in one prompt"
"""vLLM's error for more images, sounds or videos than it accepts."""
_MEDIA_HINT: Final = "Deploy other limits of `vllm.multimodal`, or start again with /new."
KINDS: Final[tuple[MediaKind, ...]] = ("image", "audio", "video")
CLOUD_RUN_REQUEST_BYTES: Final = 32 * 2**20
"""Maximum HTTP/1 request size of Cloud Run (cloud.google.com/run/quotas, "Maximum HTTP/1 request size")."""
_PROMPT_BYTES: Final = 2**20
"""Part of a request that is left for its text."""
_MIB: Final = 2**20


class Attachment(NamedTuple):
    """A file to send with a prompt, checked by content and size. The server limits how many a conversation may have."""

    part: Mapping[str, object]
    """Content part of the message."""
    shown: str
    """Text for the user."""


def request_limit(outputs: StackOutputs | None) -> int:
    """Return the maximum size of a request, in bytes, of Cloud Run or of the local proxy."""
    is_cloud_run = outputs is not None and outputs.target != "tpu"
    return CLOUD_RUN_REQUEST_BYTES if is_cloud_run else MAX_BODY_BYTES


def read_attachment(path: Path, kind: MediaKind, most_request_bytes: int) -> Attachment:
    """Return a file as an attachment. Raises CommandRefusedError if it is missing, too large, or of another kind."""
    most = (most_request_bytes - _PROMPT_BYTES) * 3 // 4
    try:
        size = path.stat().st_size
        if size > most:
            raise CommandRefusedError(
                f"{path} has {size / _MIB:,.1f} MiB; at most {most / _MIB:,.0f} MiB fit in one request. Send a smaller file."
            )
        return Attachment(media_part(path, kind), f"{path} ({kind}, {size / 1024:,.0f} KiB)")
    except OSError as error:
        raise CommandRefusedError(f"Cannot read {path}: {error.strerror}.") from None
    except MediaError as error:
        raise CommandRefusedError(str(error)) from None


class ChatError(ScriptError):
    """The server returned no complete response. The message has the cause."""


@dataclass(slots=True, kw_only=True)
class Chat:
    """A conversation. `out`: the responses only. `notes`: everything else."""

    endpoint: LocalEndpoint
    out: TextIO
    notes: TextIO
    max_tokens: int | None = None
    shows_thinking: bool = False
    thinks: bool | None = None
    """True to request thinking, False to request none. None leaves it to the server."""
    system: str | None = None
    messages: list[dict[str, object]] = field(default_factory=list[dict[str, object]])

    def ask(self, prompt: str, files: Sequence[Attachment] = ()) -> Streamed:
        """Send a prompt with its files, stream the response, store both, and return the response.

        Raises ChatError if the server rejects the request or the response is incomplete. Nothing is stored, so the prompt can be
        sent again. Raises KeyboardInterrupt after storing the response as far as it was received.
        """
        before = len(self.messages)
        text: dict[str, object] = {"type": "text", "text": prompt}
        content: object = [*(dict(file.part) for file in files), text] if files else prompt
        self.messages.append({"role": "user", "content": content})
        said: list[str] = []
        try:
            found = run_async(self._streamed(said))
        except ServerError as error:
            del self.messages[before:]
            hint = " Send the prompt again." if isinstance(error, UnreachableError) else ""
            hint = f" {_MEDIA_HINT}" if _MEDIA_LIMIT in str(error) else hint
            raise ChatError(f"The response failed: {str(error).rstrip('.')}.{hint}") from None
        except KeyboardInterrupt:
            self.messages.append({"role": "assistant", "content": "".join(said)})
            raise
        finally:
            if said:
                print_text("", self.out)
        if not found.done:
            del self.messages[before:]
            raise ChatError("The response was incomplete. Send the prompt again.")
        self.messages.append({"role": "assistant", "content": found.text})
        self._note(f"({self._figures(found)})")
        return found

    async def _streamed(self, said: list[str]) -> Streamed:
        """Print a response as it arrives, and add its text to `said`: the thinking to the notes, under a separate heading."""
        is_thinking = False

        def show(delta: Delta) -> None:
            nonlocal is_thinking
            if delta.reasoning:
                if not is_thinking:
                    self._note("thinking:" if self.shows_thinking else "thinking ...")
                    is_thinking = True
                if self.shows_thinking:
                    self._note(delta.reasoning, end="")
            if is_thinking and self.shows_thinking and (delta.text or delta.finish_reason):
                self._note("\n")
                is_thinking = False
            if delta.text:
                said.append(delta.text)
                print_text(delta.text, self.out, end="")

        headers = {"Authorization": f"Bearer {self.endpoint.key}"}
        async with OpenAIClient(self.endpoint.base_url, lambda: headers) as client:
            limits = {"limit_s": _LIMIT_S, "silence_s": _SILENCE_LIMIT_S}
            return await client.stream(self._body(), path="/chat/completions", on_delta=show, **limits)

    def _body(self) -> dict[str, object]:
        system: list[dict[str, object]] = [] if self.system is None else [{"role": "system", "content": self.system}]
        body: dict[str, object] = {"model": self.endpoint.model, "messages": [*system, *self.messages]}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if self.thinks is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinks}
        return body

    def _figures(self, found: Streamed) -> str:
        rate = found.decode_tok_per_s
        parts = [] if found.ttft_s is None else [f"first token {found.ttft_s:.2f} s"]
        parts += [] if found.usage is None else [f"{found.usage.completion_tokens} tokens"]
        parts += [] if rate is None else [f"{rate:.1f} tokens/s"]
        parts.append(f"{found.end_s:.1f} s")
        if found.reasoning and not self.shows_thinking:
            parts.append(f"{len(found.reasoning.split())} words of thinking folded")
        limit = "--max-tokens" if self.max_tokens is not None else "the server's length limit"
        return ", ".join(parts) + (f"; truncated at {limit}" if found.finish_reason == "length" else "")

    def _note(self, text: str, end: str = "\n") -> None:
        print_text(text, self.notes, end=end, dim=True)


def print_answer(model: str, found: Streamed) -> None:
    """Print a response with its figures as JSON."""
    answer = {
        "schema_version": 1,
        "model": model,
        "answer": found.text,
        "thinking": found.reasoning or None,
        "finish_reason": found.finish_reason,
        "prompt_tokens": found.usage.prompt_tokens if found.usage else None,
        "output_tokens": found.usage.completion_tokens if found.usage else None,
        "ttft_s": found.ttft_s,
        "decode_tok_per_s": found.decode_tok_per_s,
        "end_s": found.end_s,
        "simulated": found.simulated,
    }
    print_text(json.dumps(answer))


def run_chat(
    chat: Chat, read: Callable[[], str | None], files: Sequence[Attachment] = (), *, most_request_bytes: int
) -> None:
    """Read prompts and print responses until the input ends. `files` go with the first prompt."""
    if sys.stdin.isatty():
        print_text(_HELP, sys.stderr)
    waiting = list(files)
    while (line := read()) is not None:
        words = line.strip()
        command, _, rest = words.partition(" ")
        kind: MediaKind | None = next((kind for kind in KINDS if command == f"/{kind}"), None)
        try:
            if words == "/exit":
                return
            if kind is not None:
                waiting.append(read_attachment(Path(rest.strip()).expanduser(), kind, most_request_bytes))
                print_text(f"attached: {waiting[-1].shown}", sys.stderr)
            elif words.startswith("/"):
                _change(chat, words)
            elif words:
                sending, waiting = waiting, list[Attachment]()
                chat.ask(words, sending)
        except (ChatError, CommandRefusedError) as error:
            print_text(f"chat: {error}", sys.stderr)
        except KeyboardInterrupt:
            print_text("\n(stopped)", sys.stderr)


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
            print_text(f"{words.split(maxsplit=1)[0]} is not a command. {_HELP}", sys.stderr)
