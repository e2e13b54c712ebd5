"""What a teardown says and asks: progress on stderr, one question with kind, place, age and cost, and the text of the receipt."""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from cloud.found import FoundResource
from cloud.kinds import GRANT, KINDS
from cloud.prices import usd_per_hour, usd_so_far
from cloud.simulated import is_simulated
from cloud.spending import SERVICE
from planning.units import age
from scripts.cli.command import say
from scripts.cli.prompts import confirm
from scripts.cli.tables import console, table
from scripts.teardown.receipt import Receipt

_HEADINGS: Final = ("kind", "name", "place", "age", "USD per hour", "USD so far, at most")
_NUMBERS: Final = ("age", "USD per hour", "USD so far, at most")


class TeardownOutput:
    """How a teardown speaks with a person."""

    @staticmethod
    def say(text: str) -> None:
        """Print one line of progress on stderr."""
        say("teardown", text)

    @staticmethod
    def confirm(question: str, *, refusal: str) -> None:
        """Ask a person. Raises CommandRefusedError with the refusal if there is no terminal, or unless the answer is yes."""
        confirm(question, without_terminal=refusal, declined="The answer was not yes, so nothing more was deleted.")

    @staticmethod
    def show(title: str, found: Sequence[FoundResource], now: datetime) -> None:
        """Print resources with place, age and cost on stderr."""
        if not found:
            return
        shown = table(title, _HEADINGS, numbers=_NUMBERS)
        for item in found:
            shown.add_row(
                item.kind,
                item.name,
                item.location,
                _age(item, now),
                _usd(usd_per_hour(item)),
                _usd(usd_so_far(item, now)),
            )
        console(sys.stderr).print(shown)
        for item in found:
            rate = usd_per_hour(item) if item.kind == SERVICE else None
            if rate:
                print(
                    f"{item.name} keeps instances that cost ${rate * 24:,.2f} a day, also when nobody calls.",
                    file=sys.stderr,
                )
        print("Prices are list prices of each resource's place, not your bill.", file=sys.stderr, flush=True)


def text_of(receipt: Receipt, path: Path) -> str:
    """Return the receipt as text."""
    name = receipt.stack or "all stacks"
    simulated = " (local cloud, simulated)" if is_simulated() else ""
    by_api = sum(item.outcome == "deleted" for item in receipt.deletions)
    calls = receipt.searches[-1].calls if receipt.searches else ()
    lines = [
        f"teardown: {name}{simulated}: {receipt.destroyed} resources destroyed, {by_api} more deleted by the API, in {receipt.elapsed_s:.0f} s."
    ]
    if receipt.clean:
        kinds = len(KINDS) + 1
        where = f"{len(calls)} lists of {kinds} kinds of resources in {', '.join(receipt.projects)}"
        lines.append(
            f"Nothing but what is kept is left: {where} have nothing else with its marks."
            if receipt.kept
            else f"Nothing is left: {where} have nothing with its marks."
        )
    lines += [f"Kept: {item.text}\n  {item.resource.command}" for item in receipt.kept]
    lines += [f"Left in the state: {item.get('id') or item.get('urn')}" for item in receipt.state]
    lines += [f"Left: {item.kind} {item.name}\n  {item.command}" for item in receipt.left]
    lines += [
        f"Not deleted: {item.resource.kind} {item.resource.name}: {item.detail}"
        for item in receipt.deletions
        if item.detail
    ]
    lines += [f"Not known: {sentence}" for sentence in receipt.unknown]
    lines += receipt.remarks
    return "\n".join([*lines, f"Receipt: {path}"])


def counted(found: Sequence[FoundResource]) -> str:
    """Return how many resources and grants there are, in words."""
    grants = sum(item.kind == GRANT for item in found)
    return f"{len(found) - grants} resources and {grants} IAM grants"


def _age(item: FoundResource, now: datetime) -> str:
    age_s = item.age_s(now)
    return "-" if age_s is None else age(age_s)


def _usd(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:.2f}"
