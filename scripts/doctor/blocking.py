"""The checks that predict a refusal of `up`: each that fails stops the deployment before it changes anything."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from gemma_serving.engine import runner
from gemma_serving.engine.secrets_provider import can_write_salt
from gemma_serving.planning.machine.hardware import machines_at_once
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.doctor import capacity, model, passphrase, project
from gemma_serving.scripts.doctor.checkup import run_checks
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, unknown
from gemma_serving.stacks.apis import apis_of

LIMIT_S: Final = 8.0
"""Timeout for all checks together, in seconds. A late check is unknown and does not block."""


def blocking_checks(
    stack: str, settings: Settings, *, is_known: bool, has_server: Callable[[], bool]
) -> Sequence[Diagnosis]:
    """Return the checks that failed, and the unknown ones, which do not block.

    `is_known`: the backend has a state. `has_server`: whether it has a server, whose quota and weights `up` does not need again.
    """
    lines = run_checks(settings.project, stack, settings, choose=partial(_checks, is_known=is_known), limit_s=LIMIT_S)
    needed = {f"API {api}" for api in (*project.FIRST_APIS, *apis_of(settings))}
    found = [line for line in lines if line.state != "passed"]
    found = [line for line in found if not line.check.startswith("API ") or line.check in needed]
    of_server = [line for line in found if _is_of_place(line) or line.check == "weights"]
    if any(line.state == "failed" for line in of_server) and has_server():
        return [line for line in found if line not in of_server]
    usable = _has_usable_place(settings, of_server)
    return [line for line in found if not (_is_of_place(line) and line.state == "failed" and usable)]


def _checks(checkup: Checkup, *, is_known: bool) -> Sequence[DoctorCheck]:
    settings = checkup.settings
    if settings is None:
        return ()
    apis = (check for check in project.checks(checkup) if check.name == "APIs")
    file = () if is_known else (DoctorCheck(name="settings file", run=partial(_writable, checkup.stack)),)
    weights = DoctorCheck(name="weights", run=partial(_weights, settings, checkup.stack))
    # Staged weights need no hub.
    hub = (model.hub_check(checkup, settings),) if settings.weights == "hub" else ()
    return [*passphrase.checks(checkup), *file, *apis, *capacity.checks(checkup), weights, *hub]


def _writable(stack: str) -> Iterator[Diagnosis]:
    """Check that the engine can write the salt of a new stack."""
    path = runner.project_folder() / f"Pulumi.{stack}.yaml"
    if not can_write_salt(stack):
        yield missing(
            f"{path.name} is read-only, but the engine writes the salt of the secrets into it", f"chmod u+w {path}"
        )


def _weights(settings: Settings, stack: str) -> Iterator[Diagnosis]:
    """Check the weights as the hook of the deployment does."""
    if settings.weights != "bucket":
        return
    from gemma_serving.stacks.hooks.staged_weights import staged_weights  # noqa: PLC0415 - loads Pulumi's SDK

    for folder in staged_weights(settings, stack):
        fault = asyncio.run(folder.fault())
        if fault is not None and not fault.is_known:
            yield unknown(fault.text)
        elif fault is not None and fault.blocks:
            yield missing(fault.text.partition(" Run `")[0], f"gemma stage_model {stack}")


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
