"""Check that a deployed stack has not used up a limit, which the record of its machines shows."""

from collections.abc import Iterator
from functools import partial

from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, unknown


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the check of a stack with a server."""
    if checkup.settings is not None and checkup.state.has_server:
        yield DoctorCheck(name="limits", run=partial(_used, checkup.settings, checkup.stack))


def _used(settings: Settings, stack: str) -> Iterator[Diagnosis]:
    from gemma_serving.stacks.hooks.run_recorder import stack_recorder  # noqa: PLC0415 - loads Pulumi's SDK

    recorder = stack_recorder(settings, stack)
    match recorder.past_limits():
        case Present(value=exceeded):
            yield missing(exceeded, recorder.remedy)
        case Unknown(why=why):
            yield unknown(why)
        case _:
            pass
