"""Encryption of a stack's secrets: a passphrase, or the Cloud KMS key in its settings file."""

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache, partial
from typing import Final

import yaml

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.settings_files import read_regular
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import private_folder
from gemma_serving.engine.backend import BACKEND_VARIABLE
from gemma_serving.engine.exported_state import (
    is_passphrase_error,
    read_deployment,
    secrets_provider_in,
    wrong_passphrase,
)
from gemma_serving.engine.locks import past_dead_locks

_SCHEME: Final = "gcpkms://"
_KEY: Final = re.compile(r"projects/[^/?]+/locations/[^/?]+/keyRings/[^/?]+/cryptoKeys/[^/?]+")
_SALT: Final = re.compile(r"^encryptionsalt:(?P<salt>.*)", re.MULTILINE)
_SECURE: Final = re.compile(r"\bsecure:")
_ENCRYPTION: Final = re.compile(r"^(encryptionsalt|secretsprovider|encryptedkey):", re.MULTILINE)
_KEY_FORM: Final = "projects/P/locations/L/keyRings/R/cryptoKeys/K"


def provider_with(key: str) -> str:
    """Return a key with this name as a Pulumi secrets provider. Raises CommandRefusedError."""
    if _KEY.fullmatch(key) is None:
        raise CommandRefusedError(f"--secrets-key {key} is not the name of a Cloud KMS key. Expected: {_KEY_FORM}.")
    return _SCHEME + key


def provider_of(stack: str) -> str:
    """Return the secrets provider in the stack's settings file; empty for a passphrase."""
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    try:
        return _provider_in(read_regular(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):  # reported when the settings are read
        return ""


@lru_cache(maxsize=32)
def _provider_in(text: str) -> str:
    return str(as_mapping(yaml.safe_load(text)).get("secretsprovider") or "")


def key_of(stack: str) -> str | None:
    """Return the name of the Cloud KMS key in the stack's settings file, or None."""
    name = provider_of(stack).partition("?")[0].removeprefix(_SCHEME)
    return name if _KEY.fullmatch(name) else None


def provider_options(stack: str) -> Sequence[str]:
    """Return the options of a command that creates a stack.

    Without one, the engine ignores the provider in the settings file and prompts for a passphrase (Pulumi 3.256).
    """
    provider = provider_of(stack)
    return [f"--secrets-provider={provider}"] if provider else []


def can_write_salt(stack: str) -> bool:
    """Return whether the engine can write the salt of a new stack into the settings file, or does not need to."""
    return is_encrypted(stack) or os.access(runner.project_folder() / f"Pulumi.{stack}.yaml", os.W_OK)


def create_state(stack: str, report: Callable[[str], None]) -> None:
    """Create an empty state of a stack, which the lock of a killed command may outlive. `report` gets a line about a lock that was removed.

    Raises CommandRefusedError for a read-only settings file or the lock of a command that may run, and ScriptError.
    """
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    if not can_write_salt(stack):
        raise CommandRefusedError(
            f"{path} is read-only, but the engine writes the salt of the secrets into it. Nothing was changed. Run `chmod u+w {shlex.quote(str(path))}`, or "
            "use a checkout on a file system that can be written."
        )
    try:
        words = ["stack", "init", stack, "--no-select", *provider_options(stack)]
        past_dead_locks(stack, partial(runner.query, words), report=report)
    except runner.PulumiFailedError as error:
        if "already exists" not in str(error):
            raise
        raise CommandRefusedError(
            f"Another command has just created the state of stack {stack}. Nothing was changed. Run `gemma status {stack} --watch`."
        ) from None


@contextlib.contextmanager
def no_new_file(stack: str) -> Generator[None]:
    """Remove the settings file that the engine writes, with a salt alone, for a stack that has none."""
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    exists = path.exists()
    try:
        yield
    finally:
        if not exists:
            path.unlink(missing_ok=True)


def uses_passphrase(stack: str, backend: str) -> bool:
    """Return whether a passphrase encrypts the stack's secrets. Default of every backend except Pulumi Cloud."""
    return bool(salt_of(stack)) or (not is_encrypted(stack) and not backend.startswith("https://"))


def is_encrypted(stack: str) -> bool:
    """Return whether the settings file has a salt or a provider, so a new stack adds none."""
    return _ENCRYPTION.search(_text(stack)) is not None


def salt_of(stack: str) -> str:
    """Return the salt in the stack's settings file, or an empty string."""
    found = _SALT.search(_text(stack))
    return found["salt"].strip() if found else ""


def lacks_salt_of_secrets(stack: str) -> bool:
    """Return whether the settings file has encrypted values, but neither a salt nor a provider that decrypts them."""
    return not is_encrypted(stack) and _SECURE.search(_text(stack)) is not None


def passphrase_problem(stack: str, salt: str) -> str:
    """Return why the passphrase is not the one of a salt; empty if it is.

    The engine checks it when it creates a stack, here in a temporary backend.
    """
    with private_folder() as folder:
        (folder / f"Pulumi.{stack}.yaml").write_text(f"encryptionsalt: {salt}\n", encoding="utf-8")
        (folder / "Pulumi.yaml").write_bytes((runner.project_folder() / "Pulumi.yaml").read_bytes())
        (folder / "state").mkdir()
        words = ("stack", "init", stack, "--no-select", "--cwd", str(folder))
        made = runner.run(*words, variables={BACKEND_VARIABLE: f"file://{folder}/state"})
    return "" if made.returncode == 0 else runner.error_of(made)


def require_passphrase(stack: str) -> None:
    """Raise StateUnreadableError for a wrong passphrase before the engine writes its salt into a settings file without one.

    With such a salt in the file, the engine rejects the right passphrase too.
    """
    if is_encrypted(stack):
        return
    try:
        _, salt = secrets_provider_in(read_deployment(stack).document)
    except (
        ScriptError
    ):  # without a state every passphrase is right; another command reports a state that cannot be read
        return
    if salt and is_passphrase_error(passphrase_problem(stack, salt)):
        raise wrong_passphrase(stack)


def _text(stack: str) -> str:
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
