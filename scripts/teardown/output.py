"""Output of a teardown: progress on stderr, a table with location, age and cost, one confirmation, and the receipt as text."""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cloud.found import FoundResource
from cloud.kinds import SUBNETWORK
from cloud.prices import usd_per_hour, usd_so_far
from cloud.simulated import is_simulated
from cloud.spending import SERVICE
from planning.units import age
from scripts.cli.command import say
from scripts.cli.prompts import confirm
from scripts.cli.tables import FittedTable, console, paragraph
from scripts.teardown.receipt import Receipt
from scripts.teardown.would_delete import number_of, searched, would_delete

IN_USE: Final = "already being used by"
"""Words of Compute Engine about a resource in use."""
_ACCOUNT_DOMAIN: Final = ".iam.gserviceaccount.com"
_HEADINGS: Final = ("kind", "name", "place", "age", "USD per hour", "USD so far (maximum)")
_NUMBERS: Final = ("age", "USD per hour", "USD so far (maximum)")
_LEAST: Final = ("age", "USD so far (maximum)", "place")
"""Columns that a narrow terminal loses, the least important first."""


class TeardownOutput:
    """Terminal output and prompts of a teardown."""

    @staticmethod
    def report_progress(text: str) -> None:
        """Print one line of progress on stderr."""
        say("teardown", text)

    @staticmethod
    def confirm(question: str, *, refusal: str) -> None:
        """Prompt for a yes. Raises CommandRefusedError, with `refusal` if stdin is not a terminal."""
        confirm(question, without_terminal=refusal, declined="The answer was not yes. Nothing more was deleted.")

    @staticmethod
    def show(title: str, found: Sequence[FoundResource], now: datetime) -> None:
        """Print resources with location, age and cost on stderr."""
        if not found:
            return
        shown = FittedTable(title, _HEADINGS, numbers=_NUMBERS, least=_LEAST)
        for item in found:
            shown.add_row(
                item.kind,
                _short(item),
                item.location,
                _age(item, now),
                _usd(usd_per_hour(item)),
                _usd(usd_so_far(item, now)),
            )
        out = console(sys.stderr)
        out.print(shown)
        for item in found:
            rate = usd_per_hour(item) if item.kind == SERVICE else None
            if rate:
                paragraph(
                    out, f"{item.name} keeps instances running that cost ${rate * 24:,.2f} per day, even when idle."
                )
        paragraph(out, "Prices are list prices of each resource's location, not your bill.")


def text_of(receipt: Receipt) -> str:
    """Return the receipt as text; of a dry run, what would be deleted."""
    if receipt.dry_run:
        return would_delete(receipt)
    name = receipt.stack or "all stacks"
    simulated = " (local cloud, simulated)" if is_simulated() else ""
    by_api = sum(item.outcome == "deleted" for item in receipt.deletions)
    done = f"destroyed {number_of(receipt.destroyed, 'resource')}, deleted {number_of(by_api, 'leaked resource')}"
    lines = [f"teardown: {name}{simulated}: {done}, {receipt.elapsed_s:.0f} s."]
    if receipt.reasons:
        lines.append(f"Reason: the stack exceeded {' and '.join(receipt.reasons)}.")
    if receipt.clean:
        but = " except the retained ones below" if receipt.retained else ""
        lines.append(f"No leaked resources{but}: {searched(receipt)}.")
    lines += [f"Retained: {item.text}. To delete it, run:\n  {item.resource.command}" for item in receipt.retained]
    lines += [f"Still in the state: {item.get('id') or item.get('urn')}" for item in receipt.state]
    lines += [f"Leaked: {item.kind} {item.name}. To delete it, run:\n  {item.command}" for item in receipt.leaked]
    lines += [
        f"Not deleted: {item.resource.kind} {item.resource.name}: {item.detail}"
        for item in receipt.deletions
        if item.detail
    ]
    if any(item.kind == SUBNETWORK for item in receipt.leaked) and any(
        IN_USE in item.detail for item in receipt.deletions
    ):
        lines.append(
            "Cloud Run holds a subnetwork for up to two hours after its service is gone. Then run the same command again."
        )
    lines += receipt.unknown
    lines += receipt.warnings
    return "\n".join(lines)


def _short(item: FoundResource) -> str:
    """Return the name without its path; of a grant the resource, the role and the account. The receipt has full names."""
    return " ".join(word.rpartition("/")[2].removesuffix(_ACCOUNT_DOMAIN) for word in item.name.split())


def _age(item: FoundResource, now: datetime) -> str:
    age_s = item.age_s(now)
    return "-" if age_s is None else age(age_s)


def _usd(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:.2f}"
