"""Save a stack's Hugging Face token or API key.

  gemma save_token tpu-v6e1 hfToken
  gemma save_token l4-qat apiKey --generate

Prompts for the value without showing it, or reads it from standard input. So no shell history and no process list has it. By default, Pulumi stores
it encrypted in the stack's file. With --secret, Secret Manager stores it, and the stack's file has only the name of the version. The value then never
passes through Pulumi.
"""

import getpass
import json
import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.spelling import UnknownWordError, meant
from gemma_serving.engine import runner
from gemma_serving.planning.settings.secrets import API_KEY, HF_TOKEN, KINDS, SecretKind
from gemma_serving.scripts.cli.command import Command, Effect, print_progress, print_text, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option, StackName
from gemma_serving.scripts.stack.settings import stack_settings

if TYPE_CHECKING:
    from gemma_serving.planning.settings.stack import Settings

_LEAST_KEY_CHARACTERS: Final = 16
_GENERATED_BYTES: Final = 32
_TOKEN: Final = re.compile(r"(hf|api_org)_[A-Za-z0-9]+")
_SECRET_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")


def _kind(text: str) -> SecretKind:
    found = next((kind for kind in KINDS if kind.key == text), None)
    if found is None:
        raise UnknownWordError(kind.key for kind in KINDS)
    return found


def _secret_id(text: str) -> str:
    if not _SECRET_ID.fullmatch(text):
        raise ValueError("1 to 255 of A-Z, a-z, 0-9, - and _")
    return text


@dataclass(frozen=True, kw_only=True)
class SaveOptions:
    """Options of the command."""

    key: Annotated[SecretKind, Option("hfToken or apiKey.", positional=True, parse=_kind)]
    stack: StackName
    secret: Annotated[
        str | None,
        Option("Store the value in this secret of Secret Manager instead of Pulumi.", metavar="ID", parse=_secret_id),
    ] = None
    generate: Annotated[bool, Option("Generate a random API key instead of prompting for one.")] = False
    as_json: JsonSwitch = False


def _save(options: SaveOptions) -> ExitCode:
    kind, stack = options.key, options.stack
    if options.generate and kind is not API_KEY:
        raise CommandRefusedError(f"--generate supports only apiKey. Get a {kind.what} from its issuer.")
    if options.secret is not None:
        _require_apis(stack_settings(stack))
    value = secrets.token_urlsafe(_GENERATED_BYTES) if options.generate else _checked(_read(kind), kind)
    from gemma_serving.engine.secrets_provider import create_state, require_passphrase  # loads YAML

    if stack not in runner.listed_stacks():
        create_state(stack, partial(print_progress, "save_token"))
    elif options.secret is None:
        require_passphrase(stack)
    place = f"Pulumi.{stack}.yaml" if options.secret is None else _to_secret_manager(options.secret, stack, value)
    if options.secret is None:
        _configure(stack, "set", "--secret", kind.key, stdin=value)
        _configure(stack, "rm", kind.reference_key)
    else:
        # Without --plaintext, the engine treats the version's name as a secret and prompts.
        _configure(stack, "set", "--plaintext", kind.reference_key, place)
        _configure(stack, "rm", kind.key)
    if options.as_json:
        print_text(
            json.dumps(
                {"stack": stack, "key": kind.key, "place": place, "by": "reference" if options.secret else "value"}
            )
        )
    else:
        how = "encrypted in" if options.secret is None else "in Secret Manager as"
        print_progress("save_token", f"saved the {kind.what} of stack {stack} {how} {place}. Next: gemma up {stack}")
    return ExitCode.DONE


def _require_apis(settings: "Settings") -> None:
    """Raise CommandRefusedError if an API of the stack is off, and wait for Secret Manager if it was just enabled."""
    from gemma_serving.cloud.enabled import await_api, require_apis
    from gemma_serving.cloud.google_api import connect
    from gemma_serving.stacks.apis import apis_of

    def report(text: str) -> None:
        print_progress("save_token", text)

    project = settings.project
    require_apis(project, apis_of(settings), say=report)
    await_api(connect(project), "secretmanager", f"v1/projects/{project}/secrets?pageSize=1", say=report)


def _to_secret_manager(secret: str, stack: str, value: str) -> str:
    from gemma_serving.cloud.secret_values import store_secret

    return store_secret(stack_settings(stack).project, secret, value)


def _read(kind: SecretKind) -> str:
    """Prompt for the value without showing it, or read it from standard input."""
    if sys.stdin.isatty():
        return getpass.getpass(f"{kind.what} (not shown): ").strip()
    return sys.stdin.read().strip()


def _checked(value: str, kind: SecretKind) -> str:
    """Return a value in a valid format. Raises CommandRefusedError, whose message does not contain the value."""
    if not value:
        raise CommandRefusedError(f"The {kind.what} is empty. Enter it at the prompt or pass it on standard input.")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise CommandRefusedError(f"The {kind.what} is invalid: expected one line of printable ASCII without spaces.")
    if kind is HF_TOKEN and not _TOKEN.fullmatch(value):
        raise CommandRefusedError(
            "The Hugging Face token is invalid. It must start with hf_. Copy it from https://huggingface.co/settings/tokens."
        )
    if kind is API_KEY and len(value) < _LEAST_KEY_CHARACTERS:
        raise CommandRefusedError(
            f"The API key is invalid: minimum {_LEAST_KEY_CHARACTERS} characters. Pass --generate to create one."
        )
    return value


def _configure(stack: str, *arguments: str, stdin: str | None = None) -> None:
    """Change the stack's configuration. Raises ScriptError with the engine's error message, which contains no value."""
    answer = runner.run("config", *arguments, "--stack", stack, stdin=stdin)
    if answer.returncode != 0:
        raise ScriptError(
            f"`pulumi config {arguments[0]}` failed: {runner.first_error(answer.stderr, answer.returncode)}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. A value on the command line is rejected and not printed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if _has_value(words):
        print_progress(
            "save_token",
            "A value on the command line is rejected, because shells and process lists keep it. Nothing was saved. "
            "Revoke it, run `gemma save_token STACK apiKey` or `hfToken`, and enter a new one at the prompt.",
        )
        return int(ExitCode.REFUSED)
    return run_command(COMMAND, words)


def _has_value(words: Sequence[str]) -> bool:
    """Return whether a word may be a secret: it is neither an option nor a key, not even a misspelled one."""
    before = ["", *words]
    free = [word for word, option in zip(words, before, strict=False) if option not in {"--stack", "--secret"}]
    free = [word for word in free if not word.startswith("-")]
    keys = [kind.key for kind in KINDS]
    return len(free) > 1 or any(word not in keys and not meant(word, keys) for word in free)


COMMAND: Final = Command(
    name="save_token",
    help=__doc__,
    options=SaveOptions,
    run=_save,
    effect=Effect.CHANGES,
    after_interrupt="No partial value was saved. Run it again.",
)


if __name__ == "__main__":
    sys.exit(main())
