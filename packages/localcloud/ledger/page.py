"""Page about the ledger: `python -m localcloud.ledger.page` prints docs/authors/assumptions.md, with `sentence` README's sentence."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from localcloud.ledger.entries import DANGERS, Assumption, Ledger, NotModelled, load, why_by_hand

_HEAD = """\
# Assumptions about Google Cloud

The local cloud rejects the same requests as Google, as far as Google's behavior is known.
This page lists each assumption with its effect if it is false, its source, and the test that enforces it in the local cloud.
`make docs` generates it from `packages/localcloud/ledger/`.
Entries with the source `assumed` are guesses: if Google's documents do not describe the behavior, the strict answer is assumed.

## Critical assumptions, not yet tried

"""
_DECIDE = "| USD | id | if it is false | how to try it |\n| --- | --- | --- | --- |\n"
_COUNTS = """
[One evening, ten dollars](../one-evening.md) tries the critical ones together.
`python -m localcloud try` tries {trials} of the {untried} untried entries on your own project, within a budget.
See [local-cloud.md](../local-cloud.md#try-it-on-a-real-project).
The other {by_hand} must be tried manually: {reasons}.

"""
_DANGERS = "| danger | entries | tried | effect if an entry is false |\n| --- | --- | --- | --- |\n"
_SOURCES = "\n| source | entries |\n| --- | --- |\n"
_SECTIONS = (
    ("refusal", "Rejected requests", "The local cloud rejects them too, with Google's error message if it is known.\n"),
    ("behavior", "Behavior", "The local cloud behaves the same.\n"),
)
_LENIENT = """\
## Known gaps

The local cloud is more lenient than Google in these cases: a stack that works locally can fail on Google Cloud.

| id | danger | Google | if it is false | source |
| --- | --- | --- | --- | --- |
"""
_NOT_MODELLED = """\
## Not modeled

Google's discovery documents state these rules for methods that the stacks and scripts call.
The local cloud does not enforce them.
"""
_UNTRIED = """\
## Not yet tried on a real project

Sorted by danger, then by price.
`python -m localcloud try --only ID` sends the request of each entry with `yes` under `try`.
For the others, replace the words in capitals.
`TRY` is a new name. `SECRET`, `BUCKET`, `NETWORK`, `REPOSITORY` and `ACCOUNT` are your own resources. `X_40` is the letter x forty times.
`api` is `curl` with your credentials. `poll SECONDS WORDS COMMAND` repeats a command until its output matches:

```sh
poll() { end=$((SECONDS + $1)) words=$2; shift 2; until "$@" | grep -Eiq "$words" || [ $SECONDS -gt $end ]; do sleep 10; done; }
api() { curl -H "Authorization: Bearer $(gcloud auth print-access-token)" -H 'Content-Type: application/json' "$@"; }
```

If an answer differs from the statement, update the entry in `packages/localcloud/ledger/` and the local cloud.

| danger | USD | id | try | command |
| --- | --- | --- | --- | --- |
"""
_TRIED = """\
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
    """Return the number of entries, and how many of them a command tries, as README's sentence."""
    trials = sum(entry.answer is not None for entry in ledger.assumptions)
    return (
        f"The simulation rests on {len(ledger.assumptions)} [assumptions](docs/authors/assumptions.md); "
        f"`python -m localcloud try` tests {trials} of them on your project, within a budget.\n"
    )


def page(ledger: Ledger) -> str:
    """Return the page."""
    entries = sorted(ledger.assumptions, key=_by_danger)
    untried = [entry for entry in entries if not entry.tried]
    parts = [_HEAD + _DECIDE + _rows(map(_decision, (each for each in untried if each.danger == "critical")))]
    parts[0] += _counted(untried) + _DANGERS + _rows(_dangers(entries)) + _SOURCES + _rows(_counts(entries))
    for kind, heading, intro in _SECTIONS:
        rows = (_statement(entry) for entry in entries if entry.kind == kind)
        columns = (
            "| id | danger | statement | if it is false | source | test |\n| --- | --- | --- | --- | --- | --- |\n"
        )
        parts.append(f"## {heading}\n\n{intro}\n{columns}{_rows(rows)}")
    lenient = (entry for entry in entries if entry.kind == "lenient")
    parts.append(_LENIENT + _rows(_statement(entry)[:-1] for entry in lenient))
    parts.append(_NOT_MODELLED + "".join(_reason(entry) for entry in ledger.not_modelled))
    parts.append(_UNTRIED + _rows(_command(entry) for entry in untried))
    tried = [(f"`{entry.id}`", _cell(entry.tried)) for entry in entries if entry.tried]
    if tried:
        parts.append(_TRIED + _rows(tried))
    return "\n".join(parts)


def _by_danger(entry: Assumption) -> tuple[int, float, str]:
    return list(DANGERS).index(entry.danger), entry.cost_usd, entry.id


def _decision(entry: Assumption) -> tuple[str, ...]:
    how = f"python -m localcloud try --only {entry.id}" if entry.answer is not None else _cell(entry.how_to_try)
    return f"{entry.cost_usd:.2f}", f"`{entry.id}`", _cell(entry.if_false), f"`{how}`"


def _statement(entry: Assumption) -> tuple[str, ...]:
    test = f"`{_cell(entry.test)}`"
    return (
        f"`{entry.id}`",
        entry.danger,
        _cell(entry.statement),
        _cell(entry.if_false),
        _cell(entry.source),
        test,
    )


def _command(entry: Assumption) -> tuple[str, ...]:
    by_request = "yes" if entry.answer is not None else ""
    return entry.danger, f"{entry.cost_usd:.2f}", f"`{entry.id}`", by_request, f"`{_cell(entry.how_to_try)}`"


def _counted(untried: Sequence[Assumption]) -> str:
    by_hand = [entry for entry in untried if entry.answer is None]
    reasons = Counter(map(why_by_hand, by_hand))
    return _COUNTS.format(
        trials=len(untried) - len(by_hand),
        untried=len(untried),
        by_hand=len(by_hand),
        reasons="; ".join(f"{count} need {reason}" for reason, count in reasons.most_common()),
    )


def _dangers(entries: Sequence[Assumption]) -> Iterable[tuple[str, ...]]:
    for danger, meaning in DANGERS.items():
        found = [entry for entry in entries if entry.danger == danger]
        yield danger, str(len(found)), str(sum(bool(entry.tried) for entry in found)), meaning


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
    """Return a text formatted for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print((sentence if sys.argv[1:] == ["sentence"] else page)(load()), end="")
