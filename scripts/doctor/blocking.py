"""The blockers of a deployment: the list that `doctor`, `plan --live`, `capacity` and `up` show, and its refusals."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine.state import StackState, read
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.doctor import model
from gemma_serving.scripts.doctor.checkup import blockers, run_checks
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck
from gemma_serving.scripts.doctor.rendering import WIDTH, report_entries


def blocking_checks(settings: Settings, state: StackState, *, has_ended: bool = False) -> Sequence[Diagnosis]:
    """Return what is absent or unknown of all that a stack needs. `state`: it may be missing. `has_ended`: as of `run_checks`."""
    lines = run_checks(settings.project, state, settings, choose=blockers, has_ended=has_ended)
    return [line for line in lines if line.word != "ok" or line.is_short]


def live_checks(settings: Settings, stack: str) -> Sequence[Diagnosis]:
    """Return each answer about what a stack needs."""
    return run_checks(settings.project, read(stack), settings, choose=blockers)


def require_ready(
    settings: Settings, state: StackState, *, has_ended: bool = False, width: int = WIDTH
) -> Sequence[Diagnosis]:
    """Return what is unknown, and quotas that are too low in a part of the zones, neither of which blocks.

    Raises CommandRefusedError with the list if something that `up` needs is absent.
    """
    return _passed(state.stack, settings, blocking_checks(settings, state, has_ended=has_ended), width)


def require_weights(settings: Settings, stack: str, *, width: int = WIDTH) -> Sequence[Diagnosis]:
    """Do the same for the weights of a server that exists and starts again."""
    check = DoctorCheck(name="weights", run=partial(model.weights, settings, stack))
    return _passed(stack, settings, [line for line in check.lines() if line.word != "ok"], width)


def require_secrets(settings: Settings, state: StackState, *, width: int = WIDTH) -> Sequence[Diagnosis]:
    """Do the same for the secret versions of a server that exists and starts again, whose values `up` would replace."""

    def secrets(checkup: Checkup) -> Sequence[DoctorCheck]:
        return list(model.secret_checks(checkup, settings))

    lines = run_checks(settings.project, state, settings, choose=secrets)
    needed = [replace(line, blocks=True) for line in lines if line.word != "ok"]
    return _passed(state.stack, settings, needed, width)


def _passed(stack: str, settings: Settings, lines: Sequence[Diagnosis], width: int) -> Sequence[Diagnosis]:
    login = next((line for line in lines if line.check == "credentials" and line.is_absent), None)
    if login is not None:
        raise CommandRefusedError(f"{login.detail}. Nothing was changed. Run `{login.fix}`, then `gemma up {stack}`.")
    if any(line.is_absent and line.blocks for line in lines):
        raise CommandRefusedError(
            f"Project {settings.project} is not ready for stack {stack}. Nothing was changed. Run the commands below, then "
            f"`gemma up {stack}`.\n{report_entries(lines, width=width)}"
        )
    return [line for line in lines if (line.is_unknown and line.blocks) or line.is_short]
