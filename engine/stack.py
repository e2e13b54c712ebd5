"""Read a stack's outputs."""

from collections.abc import Mapping, Sequence
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.fields import ContractError, from_json
from contracts.outputs import DETAILS_TYPE, StackOutputs
from contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from engine.deployment import ResourceState, read_deployment

STACK_TYPE: Final = "pulumi:pulumi:Stack"
SERVER_TYPES: Final = frozenset({CAPACITY_TYPE, SERVICE_TYPE})


def stack_outputs(stack: str) -> StackOutputs:
    """Return a deployed stack's outputs. Raises CommandRefusedError."""
    return outputs_in(stack, read_deployment(stack).resources)


def outputs_in(stack: str, resources: Sequence[ResourceState]) -> StackOutputs:
    """Return a stack's outputs. Raises CommandRefusedError without any, or of another version."""
    printed = _outputs(resources, STACK_TYPE)
    raw = {**printed, **_outputs(resources, DETAILS_TYPE)}
    if not printed:
        raise not_deployed(stack)
    if "next" in printed and not printed.get("endpoint"):
        raise CommandRefusedError(
            f"Gateway {stack} has no service, because no backend had an address at its last complete `pulumi up`. Run {printed['next']}."
        )
    try:
        return from_json(StackOutputs, raw)
    except ContractError as error:
        if not any(resource.type in SERVER_TYPES for resource in resources):
            raise not_deployed(stack) from None  # only its bucket exists
        raise CommandRefusedError(
            f"The outputs of stack {stack} are from another version of the project: {error} Run `gemma up {stack}`."
        ) from None


def not_deployed(stack: str) -> CommandRefusedError:
    """Return the error for a stack that is not deployed, or only staged."""
    return CommandRefusedError(f"Stack {stack} is not deployed. Run `gemma up {stack}`.")


def require_server(stack: str, outputs: StackOutputs, *, what: str) -> None:
    """Raise CommandRefusedError for a gateway, to which the verb phrase `what` cannot be done."""
    if outputs.backends is not None:
        instead = " or ".join(f"--stack {one.stack}" for one in outputs.backends)
        raise CommandRefusedError(
            f"Stack {stack} is a gateway, which has no server of its own to {what}. Pass {instead}, one backend after another."
        )


def _outputs(resources: Sequence[ResourceState], kind: str) -> Mapping[str, object]:
    nothing: Mapping[str, object] = {}
    return next((resource.outputs for resource in resources if resource.type == kind and not resource.delete), nothing)
