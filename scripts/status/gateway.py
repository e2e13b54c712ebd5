"""Status of a gateway from the states of its backends: changed addresses, requests that no server answers, and the next command."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from contracts.capacity_states import ACTIVE
from contracts.fields import as_mapping, as_sequence
from engine.state import Item, StackState
from scripts.status.report import HEALTHY, StackStatus


def backends_of(state: StackState) -> Sequence[str]:
    """Return the stacks behind a gateway, as its last `pulumi up` found them; empty for other stacks."""
    return [str(one.get("stack")) for one in _backends(state)]


def judged_gateway(status: StackStatus, state: StackState, rows: Sequence[StackStatus]) -> StackStatus:
    """Return the status of a gateway with what follows from its backends, which are among `rows`."""
    by_name = {row.stack: row for row in rows}
    moved = list(_moved(state, by_name))
    if status.deployed:
        judged = replace(status, drift=[*status.drift, *moved])
        if status.is_down:
            return _down(judged, state, by_name)
        return replace(judged, next_command=_up(status.stack) if moved else status.next_command)
    if status.cloud is not None:  # an `up` that did not end; Google's facts say why
        return status
    waits = [*status.waits, "No backend had an address at the last `pulumi up`, so the gateway has no service."]
    backends = backends_of(state)
    has_one = any(by_name[stack].address for stack in backends if stack in by_name)
    return replace(status, waits=waits, next_command=_up(status.stack if has_one else backends[0]))


def _down(status: StackStatus, state: StackState, rows: Mapping[str, StackStatus]) -> StackStatus:
    """Return the status of a gateway that answers no request. Its next command is that of a backend, unless a machine only has a new address."""
    used = {str(one.get("stack")): str(one.get("address") or "") for one in _backends(state)}
    found = [rows[stack] for stack in used if stack in rows]
    runs_elsewhere = any(row.cloud and row.cloud.state == ACTIVE and row.address != used[row.stack] for row in found)
    asleep = [row.next_command for row in found if row.server is None or row.server.health != HEALTHY]
    health = status.server.health if status.server else ""
    return replace(
        status,
        waits=[*status.waits, f"No server behind the gateway answers, so its callers get {health}."],
        next_command=_up(status.stack) if runs_elsewhere else [*asleep, f"gemma logs {status.stack}"][0],
    )


def _moved(state: StackState, rows: Mapping[str, StackStatus]) -> Iterator[str]:
    """Yield a sentence for each backend whose address is not the one that the gateway uses."""
    for one in _backends(state):
        stack, used = str(one.get("stack")), str(one.get("address") or "")
        row = rows.get(stack)
        now = row.address if row is not None else used
        if now != used:
            uses = f"sends its requests to {used}" if used else "sends it no requests"
            yield f"Backend {stack} has {f'address {now}' if now else 'no address'}, but the gateway {uses}."


def _up(stack: str) -> str:
    return f"pulumi up --stack {stack}"


def _backends(state: StackState) -> Sequence[Item]:
    return [as_mapping(one) for one in as_sequence(state.printed.get("backends"))]
