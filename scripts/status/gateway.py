"""Status of a gateway from the states of its backends: changed addresses, requests that no server answers, and the next command."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from contracts.fields import as_mapping, as_sequence
from engine.state import Item, StackState
from scripts.status.report import HEALTHY, StackStatus


def backends_of(state: StackState) -> Sequence[str]:
    """Return the stacks behind a gateway, as its last `pulumi up` found them; empty for other stacks."""
    return [str(one.get("stack")) for one in _backends(state)]


def judged_gateway(status: StackStatus, state: StackState, rows: Sequence[StackStatus]) -> StackStatus:
    """Return the status of a gateway with what follows from its backends, which are among `rows`."""
    by_name = {row.stack: row for row in rows}
    found = [by_name[stack] for stack in backends_of(state) if stack in by_name]
    moved = list(_moved(state, by_name))
    waits, next_command = status.waits, status.next_command
    if status.is_down:
        health = status.server.health if status.server else ""
        waits = [*waits, f"No server behind the gateway answers, so its callers get {health}."]
        asleep = [row.next_command for row in found if row.health != HEALTHY]
        next_command = [*asleep, f"gemma logs {status.stack}"][0]
    elif not status.deployed and status.cloud is None:
        waits = [*waits, "No backend had an address at the last `pulumi up`, so the gateway has no service."]
        next_command = found[0].next_command if found else next_command
    if moved:
        next_command = f"pulumi up --stack {status.stack}"
    return replace(status, drift=[*status.drift, *moved], waits=waits, next_command=next_command)


def _moved(state: StackState, rows: Mapping[str, StackStatus]) -> Iterator[str]:
    """Yield a sentence for each backend whose address is not the one that the gateway uses."""
    for one in _backends(state):
        stack, used = str(one.get("stack")), str(one.get("address") or "")
        now = rows[stack].address if stack in rows else used
        if now != used:
            uses = f"sends its requests to {used}" if used else "sends it no requests"
            yield f"Backend {stack} has {f'address {now}' if now else 'no address'}, but the gateway {uses}."


def _backends(state: StackState) -> Sequence[Item]:
    return [as_mapping(one) for one in as_sequence(state.printed.get("backends"))]
