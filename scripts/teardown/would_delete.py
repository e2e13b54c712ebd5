"""What a teardown would delete, as text: each kind with its number and its places, and the cost per hour.

It names no single resource and no command; `--json` lists both, in the order of deletion.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Final

from cloud.capacity import Node
from cloud.found import FoundResource
from cloud.kinds import GRANT, INSTANCE, KINDS, NODE, QUEUED, SERVICE
from cloud.prices import usd_per_hour, usd_so_far
from cloud.simulated import is_simulated
from cloud.spending import SERVING
from scripts.teardown.receipt import Receipt

_MOST_PLACES: Final = 2
"""Places that a line names; more are counted."""


def counted(found: Sequence[FoundResource]) -> str:
    """Return the numbers of resources and grants as text."""
    grants = sum(item.kind == GRANT for item in found)
    return f"{number_of(len(found) - grants, 'resource')} and {number_of(grants, GRANT)}"


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun if number == 1 else _plural(noun)}"


def searched(receipt: Receipt) -> str:
    """Return what the last search read."""
    calls = receipt.searches[-1].calls if receipt.searches else ()
    return f"{len(calls)} list calls, {len(KINDS) + 1} resource types, project {', '.join(receipt.projects)}"


def would_delete(receipt: Receipt) -> str:
    """Return the result of a dry run as text."""
    name = f"{receipt.stack or 'all stacks'}{' (simulated)' if is_simulated() else ''}"
    lines = [f"{name}: {_verdict(receipt)}", *_stacks(receipt.leaked)]
    lines += [*_costs(receipt.leaked, receipt.started)]
    lines += [f"Retained: {item.text}" for item in receipt.retained]
    lines += [*receipt.unknown, *receipt.warnings, f"Searched: {searched(receipt)}."]
    if receipt.leaked:
        lines.append("With --json: each name, its age and its delete command, in the order of deletion.")
    return "\n".join(lines)


def _verdict(receipt: Receipt) -> str:
    if receipt.leaked:
        return f"{counted(receipt.leaked)} would be deleted."
    if receipt.unknown:
        return "no resource was found, but a check failed."
    return "nothing would be deleted: every list was read."


def _stacks(found: Sequence[FoundResource]) -> Iterator[str]:
    """Yield the kinds of each stack, under its name if there are several."""
    stacks = sorted({item.owner.stack for item in found})
    for stack in stacks:
        if len(stacks) > 1:
            yield f"{stack}:"
        yield from _kinds([item for item in found if item.owner.stack == stack])


def _kinds(found: Sequence[FoundResource]) -> Iterator[str]:
    """Yield one line per kind of resource, in the order of deletion."""
    groups = [(kind, [*items]) for kind, items in groupby(found, key=lambda item: item.kind)]
    nouns = [number_of(len(items), kind) for kind, items in groups]
    width = max(map(len, nouns))
    for noun, (_, items) in zip(nouns, groups, strict=True):
        facts = [_places(items), *filter(None, [_rate(items)])]
        yield f"  {noun:<{width}}  {', '.join(facts)}"


def _places(items: Sequence[FoundResource]) -> str:
    places = sorted({item.location for item in items})
    return ", ".join(places) if len(places) <= _MOST_PLACES else f"{len(places)} locations"


def _rate(items: Sequence[FoundResource]) -> str:
    """Return the cost of one kind per hour; empty for kinds that have no price per hour."""
    if items[0].kind == SERVICE and all(usd_per_hour(item) is None for item in items):
        return "no cost while idle"
    if items[0].kind not in SERVING:
        return ""
    if any(map(_is_unpriced, items)):
        return "price unknown"
    rates = [rate for item in items if (rate := usd_per_hour(item)) is not None]
    return f"${sum(rates):,.2f} per hour" if rates else ""


def _costs(found: Sequence[FoundResource], now: datetime) -> Iterator[str]:
    """Yield the cost of the VMs and services together: at least, if the price of one is unknown."""
    if not any(item.kind in SERVING for item in found):
        return
    least = "at least " if any(map(_is_unpriced, found)) else ""
    rate, so_far = _sum(map(usd_per_hour, found)), _sum(usd_so_far(item, now) for item in found)
    yield f"VMs and services at list prices: {least}${rate:,.2f} per hour; {least or 'at most '}${so_far:,.2f} so far."


def _is_unpriced(item: FoundResource) -> bool:
    """Return whether the item is a VM or a request for one whose price is unknown. A request has the price of its VM."""
    if item.kind == NODE and Node(item.document).request:
        return False
    return item.kind in {QUEUED, NODE, INSTANCE} and usd_per_hour(item) is None


def _sum(amounts: Iterable[float | None]) -> float:
    return sum(amount for amount in amounts if amount is not None)


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
