"""Effect of the engine's changes on a deployed stack in one sentence, and the stack's current price."""

from collections.abc import Sequence

from contracts.errors import CommandRefusedError
from contracts.fields import as_mapping
from contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from engine.changes import ResourceChange
from engine.deployment import ResourceState, read_deployment
from engine.stack import outputs_in
from engine.steps import CAPACITY_TYPES
from scripts.preview.effects import StackEffect
from scripts.preview.verdicts import HEADINGS


def headline(stack: str, changes: Sequence[ResourceChange]) -> str:
    """Return the sentence, in the words of the pull request comment."""
    made = [change for change in changes if change.op == "create" and change.type in CAPACITY_TYPES]
    effect = effect_of_changes(changes)
    if made and effect != "target":
        what = "requests TPU capacity" if made[0].type == CAPACITY_TYPE else "creates the service"
        return f"{stack}: {what}"
    forced = dict.fromkeys(name for change in changes if change.is_disruptive for name in change.forced_by)
    return f"{stack}: {HEADINGS[effect]}" + (f", forced by {', '.join(forced)}" if forced else "")


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
    if (CAPACITY_TYPE, "metadata") in updated:
        return "restart"
    if (SERVICE_TYPE, "template") in updated:
        return "revision"
    return "update" if changes else "nothing"


def deployed_usd_per_hour(stack: str) -> float | None:
    """Return the maximum price of the deployed stack in USD per hour, with all its instances. None if it is not deployed.

    Also None if another version of the project deployed it. Raises ScriptError if the state cannot be read.
    """
    try:
        resources = read_deployment(stack).resources
        each = outputs_in(stack, resources).plan.cost.usd_per_hour
    except CommandRefusedError:
        return None
    return round(each * _instances(resources), 4)


def _instances(resources: Sequence[ResourceState]) -> int:
    services = [one for one in resources if one.type == SERVICE_TYPE and not one.delete]
    scaling = [as_mapping(as_mapping(one.inputs.get("template")).get("scaling")) for one in services]
    return max((int(str(found.get("maxInstanceCount") or 1)) for found in scaling), default=1)
