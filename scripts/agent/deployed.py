"""Current deployments and their price per hour, from the states of all stacks in the backend, regardless of who deployed them."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, cast

from cloud.google_prices import container_usd_per_hour, node_usd_per_hour
from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import as_mapping, as_sequence
from contracts.labels import PRODUCT
from contracts.parallel import each
from contracts.resource_types import SERVICE_TYPE
from engine import runner
from engine.locks import all_locks
from engine.state import StackState, read
from engine.steps import CAPACITY_TYPES
from scripts.agent.spending_limits import Deployed

_READERS: Final = 4
"""Number of states read concurrently; each read starts an engine."""


def deployed_now() -> Deployed:
    """Read the states of all stacks. Raises CommandRefusedError if one cannot be read or priced, because the cost is then unknown."""
    try:
        listed = [as_mapping(item) for item in _listed()]
    except (ScriptError, ValueError) as error:
        raise CommandRefusedError(
            f"No paid resource was started, because the current deployments are unknown: {error}"
        ) from None
    rows = {str(item.get("name") or "").rpartition("/")[2]: item for item in listed}
    names = sorted(name for name, item in rows.items() if item.get("resourceCount") != 0)
    states = each([partial(read, name) for name in names], workers=_READERS)
    rates = {state.stack: rate for state in states if (rate := usd_per_hour_of(state)) is not None}
    locks = all_locks(list(rows))
    busy = {name for name, item in rows.items() if item.get("updateInProgress") or locks[name]}
    return Deployed(usd_per_hour=rates, busy=frozenset(busy))


def usd_per_hour_of(state: StackState) -> float | None:
    """Return the maximum price of a stack per hour. None if its state has no TPU or service, not even a pending one.

    Raises CommandRefusedError if that is unknown.
    """
    if state.status == "missing":
        return None
    if state.status != "read":
        raise CommandRefusedError(
            f"No paid resource was started, because the cost of stack {state.stack} is unknown: {state.detail} "
            f"If its state is broken, the user can run `gemma recover {state.stack}`."
        )
    capacity = [item for item in (*state.resources, *state.pending) if item.get("type") in CAPACITY_TYPES]
    rates = [_usd_per_hour(state, item) for item in capacity]
    if any(rate is None for rate in rates):
        raise CommandRefusedError(
            f"No paid resource was started, because the cost of stack {state.stack} is unknown; the price list does not have its hardware. "
            f"The user can run `gemma up {state.stack}` with prices in its settings, or tear it down."
        )
    return sum(rate for rate in rates if rate is not None) if rates else None


def _listed() -> Sequence[object]:
    return as_sequence(cast("object", json.loads(runner.query(["stack", "ls", "--json", "--project", PRODUCT]))))


def _usd_per_hour(state: StackState, item: Mapping[str, object]) -> float | None:
    """Return the price of one server with all its instances, from the stack's own plan or, failing that, from the price list."""
    inputs = as_mapping(item.get("inputs"))
    instances = _instances(inputs) if item.get("type") == SERVICE_TYPE else 1
    outputs = state.outputs
    # The plan of a gateway has the price of its servers, which are in stacks of their own.
    is_server = outputs is not None and outputs.target != "gateway"
    rate = outputs.plan.cost.usd_per_hour if outputs and is_server else _listed_usd_per_hour(item, inputs)
    return None if rate is None or instances is None else rate * instances


def _instances(inputs: Mapping[str, object]) -> int | None:
    most = as_mapping(as_mapping(inputs.get("template")).get("scaling")).get("maxInstanceCount")
    return int(most) if isinstance(most, int | float) else None


def _listed_usd_per_hour(item: Mapping[str, object], inputs: Mapping[str, object]) -> float | None:
    if item.get("type") == SERVICE_TYPE:
        return container_usd_per_hour(inputs, str(inputs.get("location") or "")) or None
    zones = [as_mapping(item.get("outputs")).get("zone") or inputs.get("zone"), *as_sequence(inputs.get("zones"))]
    kind = str(inputs.get("provisioningModel") or "standard")
    rates = [node_usd_per_hour(inputs, kind, str(zone)) for zone in zones if zone]
    known = [rate for rate in rates if rate is not None]
    return max(known) if known and len(known) == len(rates) else None
