"""The blockers of a deployment: the list that `doctor`, `plan --live`, `capacity` and `up` show, and its refusals."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.quotas import Quotas
from gemma_serving.engine.state import StackState
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.doctor import model
from gemma_serving.scripts.doctor.checkup import blockers, run_checks
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck
from gemma_serving.scripts.doctor.rendering import WIDTH, report_entries


def live_checks(settings: Settings, state: StackState, *, has_ended: bool = False) -> Sequence[Diagnosis]:
    """Return each answer about what a stack needs. `state`: it may be missing. `has_ended`: as of `run_checks`."""
    return run_checks(settings.project, state, settings, choose=blockers, has_ended=has_ended)


def read_quotas(lines: Sequence[Diagnosis]) -> Quotas:
    """Return Cloud Run's quotas that were read, for the planner."""
    return tuple(line.quota for line in lines if line.quota is not None)


def require_ready(
    settings: Settings, state: StackState, *, has_ended: bool = False, width: int = WIDTH
) -> Sequence[Diagnosis]:
    """Return each answer about what a stack needs. Raises CommandRefusedError with the list if something that `up` needs is absent."""
    return _passed(state.stack, settings, live_checks(settings, state, has_ended=has_ended), width)


def require_weights(settings: Settings, stack: str, *, width: int = WIDTH) -> Sequence[Diagnosis]:
    """Do the same for the weights of a server that exists and starts again."""
    check = DoctorCheck(name="weights", run=partial(model.weights, settings, stack))
    return _passed(stack, settings, check.lines(), width)


def require_secrets(settings: Settings, state: StackState, *, width: int = WIDTH) -> Sequence[Diagnosis]:
    """Do the same for the secret versions of a server that exists and starts again, whose values `up` would replace."""

    def secrets(checkup: Checkup) -> Sequence[DoctorCheck]:
        return list(model.secret_checks(checkup, settings))

    lines = run_checks(settings.project, state, settings, choose=secrets)
    return _passed(state.stack, settings, [replace(line, blocks=True) for line in lines], width)


def _passed(stack: str, settings: Settings, lines: Sequence[Diagnosis], width: int) -> Sequence[Diagnosis]:
    login = next((line for line in lines if line.check == "credentials" and line.is_absent), None)
    if login is not None:
        raise CommandRefusedError(f"{login.detail}. Nothing was changed. Run `{login.fix}`, then `gemma up {stack}`.")
    if any(line.is_absent and line.blocks for line in lines):
        shown = [line for line in lines if line.word != "ok" or line.is_short]
        raise CommandRefusedError(
            f"Project {settings.project} is not ready for stack {stack}. Nothing was changed. Run the commands below, then "
            f"`gemma up {stack}`.\n{report_entries(shown, width=width)}"
        )
    return lines
