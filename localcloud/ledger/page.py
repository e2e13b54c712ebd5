"""The page about the ledger: `python -m localcloud.ledger.page` prints docs/assumptions.md."""

from collections import Counter
from collections.abc import Iterable, Sequence

from localcloud.ledger.entries import Assumption, Ledger, NotModelled, load

_HEAD = """\
# What we assume about Google Cloud

The local cloud refuses what Google refuses, as far as we know it.
This page lists each assumption with its source and the test that enforces it in the local cloud.
It is generated from `localcloud/ledger/` by `make docs`.
Entries with the source `assumed` are guesses: where Google's documents are silent, we assume the unkind answer.
"""
_SOURCES = "| source | entries |\n| --- | --- |\n"
_SECTIONS = (
    ("refusal", "What Google refuses", "The local cloud refuses it too, in Google's words where they are known.\n"),
    ("behaviour", "What Google does", "The local cloud does the same.\n"),
)
_KINDER = """\
## Where the local cloud is friendlier than Google

Something that works in the local cloud can fail at Google for these reasons.

| id | Google | source |
| --- | --- | --- |
"""
_NOT_MODELLED = """\
## Not modelled

Google's discovery documents state these rules for methods that the stacks and scripts call.
The local cloud does not enforce them.
"""
_UNTRIED = """\
## Not yet tried on a real project

The cheapest first, then by id.
Replace the words in capitals.
`api` in the commands stands for `curl` with your credentials:

```sh
api() { curl -H "Authorization: Bearer $(gcloud auth print-access-token)" -H 'Content-Type: application/json' "$@"; }
```

If an answer differs from the statement, change the entry in `localcloud/ledger/` and the local cloud.

| cost in USD | id | command |
| --- | --- | --- |
"""
_KNOWN_SOURCES = {
    "https://cloud.google.com": "Google's documents",
    "docs:": "Google's documents",
    "discovery:": "discovery documents",
    "recorded:": "recorded exchanges",
    "log:": "public logs",
    "assumed": "assumed",
}


def page(ledger: Ledger) -> str:
    """Return the page."""
    parts = [_HEAD, _SOURCES + _rows(_counts(ledger.assumptions))]
    for kind, heading, intro in _SECTIONS:
        rows = [
            (f"`{entry.id}`", _cell(entry.statement), _cell(entry.source), f"`{_cell(entry.test)}`")
            for entry in ledger.assumptions
            if entry.kind == kind
        ]
        parts.append(
            f"## {heading}\n\n{intro}\n| id | statement | source | test |\n| --- | --- | --- | --- |\n{_rows(rows)}"
        )
    kinder = [entry for entry in ledger.assumptions if entry.kind == "kinder"]
    parts.append(_KINDER + _rows((f"`{e.id}`", _cell(e.statement), _cell(e.source)) for e in kinder))
    parts.append(_NOT_MODELLED + "".join(_reason(entry) for entry in ledger.not_modelled))
    untried = sorted((entry for entry in ledger.assumptions if not entry.tried), key=lambda e: (e.cost_usd, e.id))
    parts.append(_UNTRIED + _rows((f"{e.cost_usd:.2f}", f"`{e.id}`", f"`{_cell(e.how_to_try)}`") for e in untried))
    return "\n".join(parts)


def _counts(entries: Sequence[Assumption]) -> list[tuple[str, str]]:
    counted = Counter(
        next((label for start, label in _KNOWN_SOURCES.items() if entry.source.startswith(start)), "other sources")
        for entry in entries
    )
    return [(label, str(count)) for label, count in counted.most_common()]


def _reason(entry: NotModelled) -> str:
    lines = [f"\n### `{entry.id}`\n\n{entry.reason}\n"]
    if entry.unsent:
        fields = ", ".join(f"`{pattern}`" for pattern in entry.unsent).replace("[?]", "?")
        lines.append(f"\nFields that no request sends: {fields}\n")
    if entry.quotes:
        lines.append("\n" + "".join(f"- {_cell(quote)}\n" for quote in entry.quotes))
    return "".join(lines)


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(text: str) -> str:
    """Return a text that fits into a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(load()), end="")
