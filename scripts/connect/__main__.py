"""Open a local OpenAI endpoint for a deployed server and keep it open.

  gemma connect tpu-v6e1
  gemma connect tpu-v6e1 -- python app.py

The first prints code to paste and keeps running. The second runs a command with OPENAI_BASE_URL and OPENAI_API_KEY set. `gemma chat`
opens a conversation in the terminal, or sends one prompt.

A proxy on 127.0.0.1 adds a fresh identity token (Cloud Run) or uses a tunnel (TPU), which it reopens if it is lost.
"""

import importlib
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, Effect, chosen_of, print_progress, print_text, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option, parted_at_dashes

if TYPE_CHECKING:
    from gemma_serving.contracts.outputs import StackOutputs
    from gemma_serving.scripts.connect.snippets import LocalEndpoint
    from gemma_serving.scripts.stack.access import ServerAccess
    from loadtest.client.media import MediaKind

    Opener = Callable[[], AbstractContextManager[ServerAccess]]

DEFAULT_PORT: Final = 8000
DEFAULT_READY_LIMIT_S: Final = 1800.0
_FROM_INPUT: Final = "-"
_ANY_KEY: Final = "not-needed"
"""Placeholder for clients that require a key. The proxy accepts any key."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Server and port."""

    stack: Annotated[str | None, Option("Stack to connect to.", metavar="STACK")] = None
    url: Annotated[str | None, Option("URL of the server to connect to.", metavar="URL", person=True)] = None
    port: Annotated[int | None, Option("Local port; 0: a free port.", least=0, most=65_535, person=True)] = None
    require_key: Annotated[
        bool, Option("Accept only clients that send the printed key. For machines with other users.", person=True)
    ] = False
    ready_limit_s: Annotated[
        float, Option("Timeout for the server to become ready, in seconds.", flag="--ready-timeout", least=0)
    ] = DEFAULT_READY_LIMIT_S


@dataclass(frozen=True, kw_only=True)
class ConnectOptions:
    """Options of the command."""

    connection: ConnectionOptions
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """Prompt."""

    image: Annotated[
        tuple[Path, ...], Option("Send an image with the first prompt.", repeated=True, metavar="FILE", person=True)
    ] = ()
    audio: Annotated[
        tuple[Path, ...], Option("Send a sound with the first prompt.", repeated=True, metavar="FILE", person=True)
    ] = ()
    video: Annotated[
        tuple[Path, ...], Option("Send a video with the first prompt.", repeated=True, metavar="FILE", person=True)
    ] = ()
    system: Annotated[str | None, Option("System prompt.")] = None
    thinking: Annotated[
        bool | None, Option("Turn the model's thinking on or off. Default: the server's.", negatable=True)
    ] = None


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Options of `chat`."""

    connection: ConnectionOptions
    content: PromptOptions
    prompt: Annotated[
        str | None,
        Option(
            "Send this prompt, print the response and exit. - reads it from standard input.", positional=True, text=True
        ),
    ] = None
    max_tokens: Annotated[int | None, Option("Maximum length of a response, in tokens.", least=1)] = None
    show_thinking: Annotated[bool, Option("Show the thinking instead of folding it.", person=True)] = False
    as_json: JsonSwitch = False


@contextmanager
def _connected(
    opener: "Opener",
    outputs: "StackOutputs | None",
    options: ConnectionOptions,
    default_port: int,
    say: Callable[[str], None],
) -> "Generator[LocalEndpoint]":
    """Connect to the server and yield the endpoint for local programs."""
    import secrets

    from gemma_serving.scripts.connect.proxy import HOST, ConnectProxy
    from gemma_serving.scripts.connect.ready import wait_until_ready
    from gemma_serving.scripts.connect.upstream import Upstream

    upstream = Upstream(opener, say)
    key = secrets.token_urlsafe(24) if options.require_key else _ANY_KEY
    proxy = ConnectProxy(upstream, key=key if options.require_key else None)
    port = default_port if options.port is None else options.port
    with upstream.running(), proxy.running(port) as bound:
        served = None if outputs is None else outputs.served_model
        yield wait_until_ready(f"http://{HOST}:{bound}/v1", key, options.ready_limit_s, say, served=served)


def _target(options: ConnectionOptions, say: Callable[[str], None]) -> "tuple[Opener, StackOutputs | None]":
    """Return how to open access to the server, and the outputs of its stack; None with --url."""
    from gemma_serving.engine.state import of_deployment
    from gemma_serving.scripts.logs.api import with_known_cause
    from gemma_serving.scripts.stack.access import open_stack_access, open_url_access
    from gemma_serving.scripts.stack.serves import dead_server, facts_of_server, outputs_to_use

    stack, url = options.stack, options.url
    if stack is not None and url is None:
        deployment, facts = facts_of_server(stack)
        if dead_server(facts):
            raise CommandRefusedError(dead_server(with_known_cause(of_deployment(stack, deployment), facts)))
        outputs = outputs_to_use(deployment, facts)
        action = "opening the tunnel" if outputs.auth == "tunnel" else "connecting"
        say(f"{action} to {outputs.served_model} of stack {stack}")
        return lambda: open_stack_access(outputs), outputs
    if url is not None and stack is None:
        return lambda: open_url_access(url), None
    raise CommandRefusedError("Pass either STACK or --url URL.")


def _connect(options: ConnectOptions, command: Sequence[str] = ()) -> ExitCode:
    opener, outputs = _target(options.connection, _say)
    with _connected(opener, outputs, options.connection, 0 if command else DEFAULT_PORT, _say) as endpoint:
        if command:
            return cast("ExitCode", _run(command, endpoint))
        _print(endpoint, as_json=options.as_json)
        threading.Event().wait()
    raise AssertionError("unreachable, because only Ctrl-C stops the wait")


def _print(endpoint: "LocalEndpoint", *, as_json: bool) -> None:
    import json

    from gemma_serving.scripts.connect.snippets import snippets

    if as_json:
        fields = {"base_url": endpoint.base_url, "api_key": endpoint.key, "model": endpoint.model}
        print_text(json.dumps(fields | {"snippets": dict(snippets(endpoint))}))
    else:
        print_text("\n".join(f"# {title}\n{text}\n" for title, text in snippets(endpoint)))
    _say(f"{endpoint.model} is available at {endpoint.base_url}. Press Ctrl-C to disconnect.")


def _run(command: Sequence[str], endpoint: "LocalEndpoint") -> int:
    """Run a command with the endpoint in its environment and return its exit code."""
    from gemma_serving.engine.children import run_child

    variables = {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_BASE": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.key,
        "OPENAI_MODEL": endpoint.model,
    }
    return run_child(command, variables)


def _chat(options: ChatOptions) -> ExitCode:
    """Chat with the model in the terminal, or send one prompt.

      gemma chat tpu-v6e1
      gemma chat tpu-v6e1 "Say hello."
      gemma chat l4-qat --image photo.jpg "Describe it."

    The response is streamed to stdout. Folded thinking and tool calls go to stderr.
    """
    from gemma_serving.scripts.connect.chat import Chat, print_answer, read_attachment, request_limit, run_chat

    prompt = sys.stdin.read() if options.prompt == _FROM_INPUT else options.prompt
    if options.as_json and prompt is None:
        raise CommandRefusedError("--json needs a prompt. Pass a text, or - to read it from standard input.")
    if prompt is not None and not prompt.strip():
        raise CommandRefusedError("The prompt is empty. Pass a text, or no prompt for a conversation.")
    say = partial(print_progress, "chat")
    (opener, outputs), content = _target(options.connection, say), options.content
    if content.thinking and outputs and not outputs.features.thinking:
        raise CommandRefusedError(
            "The server does not separate thinking from the response. Set `vllm.thinking.parser` to gemma4, then run "
            f"`gemma up {options.connection.stack}`."
        )
    most = request_limit(outputs)
    given: Mapping[MediaKind, Sequence[Path]] = {"image": content.image, "audio": content.audio, "video": content.video}
    files = [read_attachment(path, kind, most) for kind, paths in given.items() for path in paths]
    with _connected(opener, outputs, options.connection, 0, say) as endpoint:
        chat = Chat(
            endpoint=endpoint,
            max_tokens=options.max_tokens,
            shows_thinking=options.show_thinking,
            thinks=content.thinking,
            system=content.system,
            out=StringIO() if options.as_json else sys.stdout,
            notes=sys.stderr,
        )
        if prompt is not None:
            found = chat.ask(prompt, files)
            if options.as_json:
                print_answer(endpoint.model, found)
        else:
            run_chat(chat, _prompt, files, most_request_bytes=most)
    return ExitCode.DONE


def _prompt() -> str | None:
    """Return the next prompt; None at the end of the input."""
    with suppress(ImportError):
        importlib.import_module("readline")  # adds history and arrow keys to input()
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _say(text: str) -> None:
    print_progress("connect", text)


COMMAND: Final = Command(
    name="connect",
    help=__doc__,
    options=ConnectOptions,
    run=_connect,
    needs="state",
    after_interrupt="The connection is closed. The server keeps running.",
    exit_codes={ExitCode.DONE: "done; with a command after `--`, the exit code is the command's"},
    subcommands=(
        Command(name="chat", help=_chat.__doc__, options=ChatOptions, run=_chat, label="chat", effect=Effect.SENDS),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, or the exit code of the command after `--`."""
    words, command = parted_at_dashes(sys.argv[1:] if arguments is None else arguments)
    if command and chosen_of(COMMAND, words)[0] is not COMMAND:
        print_progress("chat", "A command after -- is for `gemma connect` only.")
        return int(ExitCode.REFUSED)
    return run_command(replace(COMMAND, run=partial(_connect, command=command)), words)


if __name__ == "__main__":
    sys.exit(main())
