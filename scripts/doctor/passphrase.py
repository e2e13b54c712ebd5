"""Check of the passphrase that encrypts a stack's secrets, before every other check: with a wrong one, no command of the engine works."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Final

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.engine import backend, runner
from gemma_serving.engine.deployment import is_passphrase_error
from gemma_serving.engine.secrets_provider import passphrase_problem, uses_passphrase
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok, unknown

_VARIABLES: Final = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the check. It has no result if no backend is chosen, which another check reports."""
    yield DoctorCheck(name="Pulumi passphrase", run=partial(_passphrase, checkup.stack))


def _passphrase(stack: str) -> Iterator[Diagnosis]:
    """Check that a passphrase is set and that it decrypts the stack's settings file."""
    url = backend.chosen_url(runner.project_folder())
    given = next((name for name in _VARIABLES if name in os.environ), None)
    if not url:
        return
    if not uses_passphrase(stack, url):
        yield ok("another secrets provider encrypts the stack's secrets")
    elif given is None:
        yield missing(f"neither {' nor '.join(_VARIABLES)} is set", f"export {_VARIABLES[1]}=FILE")
    else:
        problem = passphrase_problem(stack)
        if problem is None:
            yield ok(f"{given} is set")
        elif not problem:
            yield ok(f"{given} decrypts Pulumi.{stack}.yaml")
        elif is_passphrase_error(problem):
            yield _wrong(stack, given)
        else:
            yield unknown(f"cannot check {given} with encryptionsalt in Pulumi.{stack}.yaml: {problem}")


def _wrong(stack: str, given: str) -> Diagnosis:
    detail = f"{given} is not the passphrase that wrote encryptionsalt in Pulumi.{stack}.yaml"
    value = "FILE" if given.endswith("FILE") else "PASSPHRASE"
    try:
        is_absent = stack not in runner.listed_stacks()
    except ScriptError:  # another check reports the backend
        is_absent = False
    if is_absent:
        detail += (
            f". The backend has no stack {stack}: if a trial on the local cloud wrote the line, delete it; "
            "otherwise set the right passphrase"
        )
    return missing(detail, f"export {given}={value}")
