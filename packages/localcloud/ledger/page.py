"""Page about the ledger: `python -m localcloud.ledger.page` prints dev/docs/assumptions.md, with `sentence` the sentences of docs/judged.md."""

import sys
from collections import Counter
from collections.abc import Iterable

from localcloud.ledger.entries import CriticalAssumption, Ledger, load

_HEAD = """\
# Assumptions about Google Cloud

The local cloud rejects the same requests as Google, as far as Google's behavior is known.
The *ledger*, the files in `packages/localcloud/ledger/`, lists the assumptions of high weight about it.
`make docs` generates this page from it.

## Critical assumptions, not yet tried

"""
_DECIDE = "| USD | id | if it is false | try it |\n| --- | --- | --- | --- |\n"
_ENTRIES = """
[One evening, ten dollars](../../docs/one-evening.md) tries them together.

## Entries

{critical} of the {count} entries are critical: if one is false, a stack does not serve, is unreachable, or leaves a billed machine.
If one of the others is false, a command fails, a wrong result is trusted, or money is lost, in a common situation; or a figure or a page rests on it.
None of these others was tried on Google Cloud.

An entry has a statement, its source, and its test: `grep -A 4 '^id = "ID"' packages/localcloud/ledger/*.toml` prints it.
Entries with the source `assumed` are guesses: if Google's documents do not describe the behavior, the strict answer is assumed.

Entries by source: {sources}.

## Known gaps

The local cloud is more lenient than Google in {lenient} entries, which have no test: {gaps}.

{not_modelled} entries under `[[not_modelled]]` quote rules of Google's discovery documents that the local cloud does not enforce, with the reason.
"""
_TRIED = """
## Tried on a real project

| id | result |
| --- | --- |
"""
_KNOWN_SOURCES = {
    "https://cloud.google.com": "Google's documents",
    "docs:": "Google's documents",
    "discovery:": "discovery documents",
    "recorded:": "recorded exchanges",
    "log:": "public logs",
    "assumed": "assumed",
}


def sentence(ledger: Ledger) -> str:
    """Return the numbers of critical entries, of those that were tried, and of all entries, as sentences of docs/judged.md."""
    tried = sum(bool(entry.tried) for entry in ledger.critical)
    return (
        f"**{len(ledger.critical)} assumptions about Google are critical, and {tried or 'none'} of them were tried on Google Cloud**: "
        "if one is false, a stack does not serve, cannot be reached, or stays billed.\n"
        "[One evening, ten dollars](one-evening.md) tries them on your project.\n"
        f"In all, the simulation makes {len(ledger.assumptions)} [assumptions](../dev/docs/assumptions.md) of high weight.\n"
    )


def page(ledger: Ledger) -> str:
    """Return the page."""
    untried = [entry for entry in ledger.critical if not entry.tried]
    lenient = [entry for entry in ledger.assumptions if not entry.test]
    tried = [(f"`{entry.id}`", f"`{_cell(entry.tried)}`") for entry in ledger.critical if entry.tried]
    text = _ENTRIES.format(
        critical=len(ledger.critical),
        count=len(ledger.assumptions),
        sources=", ".join(f"{label} {count}" for label, count in _sources(ledger).most_common()),
        lenient=len(lenient),
        gaps=", ".join(f"`{entry.id}`" for entry in lenient),
        not_modelled=len(ledger.not_modelled),
    )
    return _HEAD + _DECIDE + _rows(map(_decision, untried)) + text + (_TRIED + _rows(tried) if tried else "")


def _decision(entry: CriticalAssumption) -> tuple[str, ...]:
    how = f"`python -m localcloud try --only {entry.id}`"
    return f"{entry.cost_usd:.2f}", f"`{entry.id}`", _cell(entry.if_false), how


def _sources(ledger: Ledger) -> Counter[str]:
    return Counter(
        next((label for start, label in _KNOWN_SOURCES.items() if entry.source.startswith(start)), "other sources")
        for entry in ledger.assumptions
    )


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(text: str) -> str:
    """Return a text formatted for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print((sentence if sys.argv[1:] == ["sentence"] else page)(load()), end="")
