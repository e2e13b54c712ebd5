"""Restart the server of a stack: on its TPU machine, or as a new revision of its Cloud Run service."""

from typing import Protocol

from cloud.google_api import connect
from contracts.errors import CommandRefusedError
from contracts.outputs import StackOutputs
from contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from engine.deployment import ResourceState, read_deployment
from engine.locks import require_dead, stack_locks
from engine.stack import outputs_in, require_server
from planning.errors import PlanningError
from planning.planner import plan
from scripts.cli.settings import stack_settings
from scripts.restart.report import PlannedTimes, RestartLook, RestartReport, Say


class Restart(Protocol):
    """A restart of one server."""

    def look(self) -> RestartLook:
        """Return what the restart will do. Raises CommandRefusedError if it cannot be done, and ScriptError if that is unknown."""
        ...

    def run(self) -> RestartReport:
        """Request the restart and wait until the server is ready again. Call `look` first. Raises ScriptError."""
        ...


def restart_of(stack: str, say: Say) -> Restart:
    """Return the restart of a deployed stack. Raises CommandRefusedError if it has no server or is being changed."""
    locks = stack_locks(stack)
    if any(not lock.is_dead for lock in locks):
        require_dead(stack, locks)
    resources = read_deployment(stack).resources
    outputs = outputs_in(stack, resources)
    require_server(stack, outputs, what="restart")
    server = next((one for one in resources if one.type in {CAPACITY_TYPE, SERVICE_TYPE} and not one.delete), None)
    if server is None:
        raise CommandRefusedError(f"Stack {stack} has no server. Run `gemma up {stack}`.")
    api, times = connect(outputs.project), planned_times(stack, outputs)
    if server.type == CAPACITY_TYPE:
        from scripts.restart.machine import MachineRestart  # noqa: PLC0415 - one of the two

        return MachineRestart.of(stack, outputs, server.outputs, times, api=api, say=say)
    from scripts.restart.service import ServiceRestart  # noqa: PLC0415 - one of the two

    return ServiceRestart.of(stack, outputs, service_name(server), times, api=api, say=say, urn=server.urn)


def service_name(server: ResourceState) -> str:
    """Return the full name of a service in the state."""
    inputs = server.inputs
    return f"projects/{inputs.get('project')}/locations/{inputs.get('location')}/services/{inputs.get('name')}"


def planned_times(stack: str, outputs: StackOutputs) -> PlannedTimes:
    """Return the planned times by the stack's settings file, or by the last `pulumi up` if it cannot be planned."""
    from stacks.planned import to_deployment  # noqa: PLC0415 - the settings take 0.2 s to load

    startup = outputs.plan.startup
    try:
        planned = plan(to_deployment(stack_settings(stack, project=outputs.project))).startup
    except (CommandRefusedError, PlanningError):
        return PlannedTimes(restart_s=startup.load_s + startup.compile_s, start_s=startup.total_s)
    return PlannedTimes(restart_s=planned.restart_s, start_s=planned.ready_s)
