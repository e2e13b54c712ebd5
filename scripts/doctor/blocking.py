"""The checks that predict a refusal of `up`: each that fails stops the deployment before it changes anything."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from gemma_serving.contracts.answers import Present, Unknown
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.engine.secrets_provider import can_write_salt
from gemma_serving.engine.state import StackState
from gemma_serving.planning.machine.hardware import machines_at_once
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.doctor import capacity, model, passphrase, project
from gemma_serving.scripts.doctor.checkup import run_checks
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, unknown
from gemma_serving.scripts.doctor.rendering import WIDTH, report_entries
from gemma_serving.scripts.stack.deployed_server import secret_versions
from gemma_serving.stacks.apis import apis_of
from gemma_serving.stacks.extra_checkpoints import staging_command

LIMIT_S: Final = 8.0
"""Timeout for all checks together, in seconds. A late check is unknown and does not block."""


def blocking_checks(settings: Settings, state: StackState) -> Sequence[Diagnosis]:
    """Return the checks that failed, and the unknown ones, which do not block.

    `state`: it may be missing. `up` does not need the quota, the weights and the image of its server again.
    """
    lines = run_checks(settings.project, state, settings, choose=_checks, limit_s=LIMIT_S)
    needed = {f"API {api}" for api in (*project.FIRST_APIS, *apis_of(settings))}
    found = [line for line in lines if line.state != "passed"]
    found = [line for line in found if not line.check.startswith("API ") or line.check in needed]
    of_server = [line for line in found if _is_of_place(line) or line.check == "weights"]
    if any(settings.image.digest in str(server) for server in state.servers):
        of_server += [line for line in found if line.check == "image"]
    if state.has_server:
        return [line for line in found if line not in of_server]
    usable = _has_usable_place(settings, of_server)
    return [line for line in found if not (_is_of_place(line) and line.state == "failed" and usable)]


def require_ready(settings: Settings, state: StackState, *, width: int = WIDTH) -> Sequence[Diagnosis]:
    """Return the checks that are unknown, which do not block. Raises CommandRefusedError with each that failed, and its fix."""
    return _passed(state.stack, settings, blocking_checks(settings, state), width)


def require_weights(settings: Settings, stack: str, *, width: int = WIDTH) -> Sequence[Diagnosis]:
    """Do the same for the weights of a server that exists and starts again."""
    return _passed(stack, settings, _weights_check(settings, stack).lines(), width)


def require_secrets(settings: Settings, state: StackState, *, width: int = WIDTH) -> Sequence[Diagnosis]:
    """Do the same for the secret versions of a server that exists and starts again."""
    lines = run_checks(settings.project, state, settings, choose=partial(_secrets, settings), limit_s=LIMIT_S)
    return _passed(state.stack, settings, [line for line in lines if line.state != "passed"], width)


def _secrets(settings: Settings, checkup: Checkup) -> Sequence[DoctorCheck]:
    return list(model.secret_checks(checkup, settings, secret_versions(checkup.state)))


def _passed(stack: str, settings: Settings, lines: Sequence[Diagnosis], width: int) -> Sequence[Diagnosis]:
    login = next((line for line in lines if line.check == "credentials" and line.state == "failed"), None)
    if login is not None:
        raise CommandRefusedError(f"{login.detail}. Nothing was changed. Run `{login.fix}`, then `gemma up {stack}`.")
    if any(line.state == "failed" for line in lines):
        raise CommandRefusedError(
            f"Project {settings.project} is not ready for stack {stack}. Nothing was changed. Run the commands below, then "
            f"`gemma up {stack}`.\n{report_entries(lines, width=width)}"
        )
    return lines


def _checks(checkup: Checkup) -> Sequence[DoctorCheck]:
    settings, state = checkup.settings, checkup.state
    if settings is None:
        return ()
    apis = (check for check in project.checks(checkup) if check.name == "APIs")
    is_new = state.status == "missing"
    file = (DoctorCheck(name="settings file", run=partial(_writable, checkup.stack)),) if is_new else ()
    used = (DoctorCheck(name="limits", run=partial(_used, settings, checkup.stack)),) if state.has_server else ()
    from_internet = (*model.hub_checks(checkup, settings), model.image_check(checkup, settings))
    return [
        *passphrase.checks(checkup),
        *file,
        *apis,
        *capacity.checks(checkup),
        _weights_check(settings, checkup.stack),
        *model.secret_checks(checkup, settings, {}),
        *from_internet,
        *used,
    ]


def _writable(stack: str) -> Iterator[Diagnosis]:
    """Check that the engine can write the salt of a new stack."""
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    if not can_write_salt(stack):
        yield missing(
            f"{path.name} is read-only, but the engine writes the salt of the secrets into it", f"chmod u+w {path}"
        )


def _weights_check(settings: Settings, stack: str) -> DoctorCheck:
    """Return the check of the weights that the hook of the deployment makes."""
    return DoctorCheck(name="weights", run=partial(_weights, settings, stack))


def _weights(settings: Settings, stack: str) -> Iterator[Diagnosis]:
    if settings.weights != "bucket":
        return
    from gemma_serving.stacks.hooks.staged_weights import staged_weights  # noqa: PLC0415 - loads Pulumi's SDK

    for folder in staged_weights(settings, stack):
        fault = asyncio.run(folder.fault())
        if fault is not None and not fault.is_known:
            yield unknown(fault.text)
        elif fault is not None and fault.blocks:
            yield missing(fault.text.partition(" Run `")[0], staging_command(settings, stack))


def _used(settings: Settings, stack: str) -> Iterator[Diagnosis]:
    """Check that the stack has not used up a limit."""
    from gemma_serving.stacks.hooks.run_recorder import stack_recorder  # noqa: PLC0415 - loads Pulumi's SDK

    recorder = stack_recorder(settings, stack)
    match recorder.past_limits():
        case Present(value=exceeded):
            yield missing(exceeded, recorder.remedy)
        case Unknown(why=why):
            yield unknown(why)
        case _:
            pass


def _has_usable_place(settings: Settings, lines: Sequence[Diagnosis]) -> bool:
    """Return whether no quota or offer excludes a zone of the stack, or the region of its service."""
    tpu, run = settings.tpu, settings.cloud_run
    machines = machines_at_once(tpu.renew_before_s) if tpu else 1
    excluded = {line.check.rpartition(" in ")[2] for line in lines if _excludes(line, machines)}
    places = tpu.zones if tpu else [run.region] if run else []
    return any(not {place, place.rpartition("-")[0]} & excluded for place in places)


def _is_of_place(line: Diagnosis) -> bool:
    """Return whether a result is a quota or an offer of a zone or region."""
    return " in " in line.check


def _excludes(line: Diagnosis, machines: int) -> bool:
    """Return whether a place cannot have one machine, even if no other resource uses the quota."""
    if line.state != "failed" or not _is_of_place(line) or line.has_alternative:
        return False
    limit = line.values.get("limit")
    needed = line.values.get("needed")
    return not (isinstance(limit, int | float) and isinstance(needed, int | float)) or limit * machines < needed
