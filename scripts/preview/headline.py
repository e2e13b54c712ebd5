"""Effect of the engine's changes on a deployed stack in one sentence, and the stack's current price."""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.collector import COLLECTOR_METADATA_KEY
from contracts.errors import CommandRefusedError
from contracts.fields import as_mapping
from contracts.outputs import StackOutputs
from contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from engine.changes import ResourceChange
from engine.deployment import ResourceState, read_deployment
from engine.stack import outputs_in
from engine.steps import CAPACITY_TYPES
from scripts.preview.effects import StackEffect
from scripts.preview.verdicts import HEADINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedStack:
    """What the state knows about a stack that is deployed."""

    outputs: StackOutputs
    usd_per_hour: float
    """Maximum price, with all its instances."""


def headline(stack: str, changes: Sequence[ResourceChange]) -> str:
    """Return the sentence, in the words of the pull request comment."""
    made, effect = makes_server(changes), effect_of_changes(changes)
    if made:
        return f"{stack}: {'requests TPU capacity' if made == CAPACITY_TYPE else 'creates the service'}"
    forced = dict.fromkeys(name for change in changes if change.is_disruptive for name in change.forced_by)
    return f"{stack}: {HEADINGS[effect]}" + (f", forced by {', '.join(forced)}" if forced else "")


def makes_server(changes: Sequence[ResourceChange]) -> str | None:
    """Return the type of the serving resource that the changes create, or None. A move to another target also replaces the old one."""
    made = [change.type for change in changes if change.op == "create" and change.type in CAPACITY_TYPES]
    return made[0] if made and effect_of_changes(changes) != "target" else None


def effect_of_changes(changes: Sequence[ResourceChange]) -> StackEffect:
    """Return the strongest effect of the changes on running resources."""
    lost = {change.type for change in changes if change.is_disruptive}
    made = {change.type for change in changes if change.op == "create"}
    if (CAPACITY_TYPE in lost and SERVICE_TYPE in made) or (SERVICE_TYPE in lost and CAPACITY_TYPE in made):
        return "target"
    if CAPACITY_TYPE in lost:
        return "capacity"
    if SERVICE_TYPE in lost:
        return "service"
    updated = {(change.type, name) for change in changes if change.op == "update" for name in change.properties}
    if (CAPACITY_TYPE, "metadata") in updated and not all(map(_is_of_collector, changes)):
        return "restart"
    if (SERVICE_TYPE, "template") in updated:
        return "revision"
    return "update" if changes else "nothing"


def _is_of_collector(change: ResourceChange) -> bool:
    """Return whether a change of the machine's metadata is that of the collector alone. True for other resources."""
    if change.type != CAPACITY_TYPE or "metadata" not in change.properties:
        return True
    paths = [shown.path for shown in change.changes if shown.path.startswith("metadata")]
    return change.changes_left_out == 0 and bool(paths) and all(COLLECTOR_METADATA_KEY in path for path in paths)


def deployed_usd_per_hour(stack: str) -> float | None:
    """Return the maximum price of the deployed stack in USD per hour, with all its instances. None as for `deployed_stack`.

    Raises ScriptError if the state cannot be read.
    """
    found = deployed_stack(stack)
    return found.usd_per_hour if found else None


def deployed_stack(stack: str) -> DeployedStack | None:
    """Return the deployed stack. None if it is not deployed, or if another version of the project deployed it.

    Raises ScriptError if the state cannot be read.
    """
    try:
        resources = read_deployment(stack).resources
        outputs = outputs_in(stack, resources)
    except CommandRefusedError:
        return None
    return DeployedStack(outputs=outputs, usd_per_hour=round(outputs.plan.cost.usd_per_hour * _instances(resources), 4))


def _instances(resources: Sequence[ResourceState]) -> int:
    services = [one for one in resources if one.type == SERVICE_TYPE and not one.delete]
    scaling = [as_mapping(as_mapping(one.inputs.get("template")).get("scaling")) for one in services]
    return max((int(str(found.get("maxInstanceCount") or 1)) for found in scaling), default=1)
