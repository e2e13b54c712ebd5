"""Checks of what the engine needs before every other: the passphrase, a state that can be read, and a settings file for its salt."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Final

from gemma_serving.contracts.settings_files import refresh_command
from gemma_serving.engine import backend, runner
from gemma_serving.engine.exported_state import is_passphrase_error, secrets_provider_in
from gemma_serving.engine.secrets_provider import (
    can_write_salt,
    lacks_salt_of_secrets,
    passphrase_problem,
    salt_of,
    uses_passphrase,
)
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok, unknown

_VARIABLES: Final = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the checks. That of the passphrase has no answer if no backend is chosen, which another check reports."""
    yield DoctorCheck(name="Pulumi passphrase", run=partial(_passphrase, checkup.state))
    if checkup.state.status == "unreadable":
        yield DoctorCheck(name="state", run=partial(_unreadable, checkup.state))
    if checkup.stack and checkup.state.status == "missing":
        yield DoctorCheck(name="settings file", run=partial(_writable, checkup.stack))


def _unreadable(state: StackState) -> Iterator[Diagnosis]:
    """Yield why a state cannot be read. `up` replaces one that is cut off."""
    if state.is_cut_off:
        yield missing(f"the state of stack {state.stack} is cut off", f"gemma up {state.stack}", blocks=False)
    else:
        yield unknown(state.detail)


def _writable(stack: str) -> Iterator[Diagnosis]:
    """Check that the engine can write the salt of a new stack."""
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    if not can_write_salt(stack):
        yield missing(
            f"{path.name} is read-only, but the engine writes the salt of the secrets into it", f"chmod u+w {path}"
        )


def _passphrase(state: StackState) -> Iterator[Diagnosis]:
    """Check that a passphrase is set and that it decrypts the stack's state, then its settings file."""
    url = backend.chosen_url(runner.project_folder())
    given = next((name for name in _VARIABLES if name in os.environ), None)
    if not url:
        return
    if state.status == "no engine":
        return
    provider, salt = secrets_provider_in(state.raw)
    if provider not in {"", "passphrase"} or not (salt or uses_passphrase(state.stack, url)):
        yield ok("another secrets provider encrypts the stack's secrets")
    elif given is None:
        yield missing(f"neither {' nor '.join(_VARIABLES)} is set", f"export {_VARIABLES[1]}=FILE")
    else:
        yield _judged(state, salt, given)


def _judged(state: StackState, salt: str, given: str) -> Diagnosis:
    """Return whether the passphrase decrypts the state with this salt, or, without one, the settings file."""
    stack, in_file = state.stack, salt_of(state.stack)
    if not salt and not in_file:
        return ok(f"{given} is set")
    problem = passphrase_problem(stack, salt or in_file)
    if problem and not is_passphrase_error(problem):
        return unknown(f"cannot check {given} with its salt: {problem}")
    if problem:
        value = "FILE" if given.endswith("FILE") else "PASSPHRASE"
        return missing(f"{given} {_wrong(state, salt)}", f"export {given}={value}")
    if lacks_salt_of_secrets(stack):
        fault = "has secrets without their encryptionsalt"
    elif salt and in_file not in {"", salt} and is_passphrase_error(passphrase_problem(stack, in_file)):
        fault = "has the encryptionsalt of another passphrase"
    else:
        return ok(f"{given} decrypts {'the state' if salt else f'Pulumi.{stack}.yaml'}")
    return missing(f"{given} is right, but Pulumi.{stack}.yaml {fault}", refresh_command(stack))


def _wrong(state: StackState, salt: str) -> str:
    stack = state.stack
    if salt:
        return f"is not the passphrase of the state of stack {stack}"
    absent = f". The backend has no stack {stack}: if a trial on the local cloud wrote the line, delete it; otherwise set the right passphrase"
    return f"is not the passphrase that wrote encryptionsalt in Pulumi.{stack}.yaml{absent if state.status == 'missing' else ''}"
