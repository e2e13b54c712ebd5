"""Read a stack's outputs and state."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.fields import ContractError, from_json
from contracts.outputs import StackOutputs
from scripts.errors import CommandRefusedError
from scripts.pulumi import engine


@dataclass(frozen=True, slots=True, kw_only=True)
class StateResource:
    """One resource of a stack's state; `id` is empty for components, and `delete` says that an interrupted replacement still has to delete it."""

    type: str
    urn: str
    id: str = ""
    delete: bool = False


@dataclass(frozen=True, slots=True)
class _Deployment:
    resources: tuple[StateResource, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    deployment: _Deployment | None = None


def stack_outputs(stack: str) -> StackOutputs:
    """Return the outputs of a deployed stack.

    Raises CommandRefusedError if the stack does not exist, is not deployed, or was deployed by another version of the project.
    """
    raw = json.loads(engine.query(["stack", "output", "--json", "--show-secrets", "--stack", stack]))
    if not raw:
        raise CommandRefusedError(f"Stack {stack} is not deployed; run `pulumi up --stack {stack}`.")
    try:
        return from_json(StackOutputs, raw)
    except ContractError as error:
        raise CommandRefusedError(
            f"Stack {stack} has other outputs than this version of the project writes: {error} Run `pulumi up --stack {stack}`."
        ) from None


def stack_resources(stack: str) -> Sequence[StateResource]:
    """Return the resources in the stack's state, without the stack itself and its providers. Raises CommandRefusedError if the stack does not exist."""
    checkpoint = from_json(_Checkpoint, json.loads(engine.query(["stack", "export", "--stack", stack])))
    resources = (checkpoint.deployment.resources if checkpoint.deployment else None) or ()
    hidden = ("pulumi:pulumi:", "pulumi:providers:")
    return tuple(resource for resource in resources if not resource.type.startswith(hidden))
