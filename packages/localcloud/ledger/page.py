"""Page about the ledger: `python -m localcloud.ledger.page` prints docs/authors/assumptions.md, with `sentence` README's sentence."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from localcloud.ledger.entries import DANGERS, Assumption, Ledger, load, why_by_hand

_HEAD = """\
# Assumptions about Google Cloud

The local cloud rejects the same requests as Google, as far as Google's behavior is known.
Each rule is an entry of the *ledger*: the list of these assumptions in `packages/localcloud/ledger/`.
`make docs` generates this page from it.

## Critical assumptions, not yet tried

"""
_DECIDE = "| USD | id | if it is false | try it |\n| --- | --- | --- | --- |\n"
_COUNTS = """
[One evening, ten dollars](../one-evening.md) tries the critical ones together.
`python -m localcloud try` tries {trials} of the {untried} untried entries on your own project, within a budget.
See [local-cloud.md](../local-cloud.md#try-it-on-a-real-project).
The other {by_hand} must be tried manually:

{reasons}

## Entries

An entry has a statement, its source, the effect if it is false, its test, and a command that tries it on Google Cloud.
Entries with the source `assumed` are guesses: if Google's documents do not describe the behavior, the strict answer is assumed.

"""
_DANGERS = "| danger | entries | tried | effect if an entry is false |\n| --- | --- | --- | --- |\n"
_KINDS = "\n| kind | entries | local cloud |\n| --- | --- | --- |\n"
_SOURCES = "\nEntries by source: {counts}.\n"
_OF_KIND = {
    "refusal": "rejects the request, with Google's error message if it is known",
    "behavior": "behaves the same",
    "lenient": "accepts or skips it, so a stack that works locally can fail on Google Cloud",
}
_LENIENT = """
## Known gaps

The local cloud is more lenient than Google in {count} entries of the kind `lenient`.
Critical or high: {worst}.
"""
_NOT_MODELLED = """
{count} entries under `[[not_modelled]]` quote rules of Google's discovery documents that the local cloud does not enforce, with the reason.
"""
_READ = """
## Read and try an entry

```sh
grep -A 14 '^id = "ID"' packages/localcloud/ledger/*.toml
python -m localcloud try --only ID
```

In the commands under `try`, replace the words in capitals.
`TRY` is a new name. `SECRET`, `BUCKET`, `NETWORK`, `REPOSITORY` and `ACCOUNT` are your own resources. `X_40` is the letter x forty times.
`gemma` and `pulumi` run in the folder with your settings files; the entry's `stack` is deployed first.
`START` and `END` are the times of the last `sleep`, and the commands after `tomorrow` run on another day.
`api` is `curl` with your credentials. `poll SECONDS WORDS COMMAND` repeats a command until its output matches:

```sh
poll() { end=$((SECONDS + $1)) words=$2; shift 2; until "$@" | grep -Eiq "$words" || [ $SECONDS -gt $end ]; do sleep 10; done; }
api() { curl -H "Authorization: Bearer $(gcloud auth print-access-token)" -H 'Content-Type: application/json' "$@"; }
```

Record the result under `tried`; if the answer differs from the statement, correct the entry and the local cloud.
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
    """Return the numbers of critical entries, of all entries and of those that a command tries, as README's sentences."""
    entries = ledger.assumptions
    critical = [entry for entry in entries if entry.danger == "critical"]
    tried = sum(bool(entry.tried) for entry in critical)
    trials = sum(entry.answer is not None for entry in entries)
    return (
        f"**{len(critical)} assumptions about Google are critical, and {tried or 'none'} of them were tried on Google Cloud**: "
        "if one is false, a stack does not serve, cannot be reached, or stays billed.\n"
        "[One evening, ten dollars](docs/one-evening.md) tries them on your project.\n"
        f"In all, the simulation makes {len(entries)} [assumptions](docs/authors/assumptions.md); "
        f"`python -m localcloud try` checks {trials} of them, within a budget that you set.\n"
    )


def page(ledger: Ledger) -> str:
    """Return the page."""
    entries = sorted(ledger.assumptions, key=_by_danger)
    untried = [entry for entry in entries if not entry.tried]
    lenient = [entry for entry in entries if entry.kind == "lenient"]
    kinds = Counter(entry.kind for entry in entries)
    parts = [
        _HEAD + _DECIDE + _rows(map(_decision, (each for each in untried if each.danger == "critical"))),
        _counted(untried) + _DANGERS + _rows(_dangers(entries)),
        _KINDS + _rows((f"`{kind}`", str(kinds[kind]), meaning) for kind, meaning in _OF_KIND.items()),
        _SOURCES.format(counts=", ".join(f"{label} {count}" for label, count in _counts(entries))),
        _LENIENT.format(
            count=len(lenient),
            worst=", ".join(f"`{entry.id}`" for entry in lenient if entry.danger in {"critical", "high"}),
        ),
        _NOT_MODELLED.format(count=len(ledger.not_modelled)),
        _READ,
    ]
    tried = [(f"`{entry.id}`", f"`{_cell(entry.tried)}`") for entry in entries if entry.tried]
    return "".join(parts) + (_TRIED + _rows(tried) if tried else "")


def _by_danger(entry: Assumption) -> tuple[int, float, str]:
    return list(DANGERS).index(entry.danger), entry.cost_usd, entry.id


def _decision(entry: Assumption) -> tuple[str, ...]:
    how = f"python -m localcloud try --only {entry.id}" if entry.answer is not None else _cell(entry.how_to_try)
    return f"{entry.cost_usd:.2f}", f"`{entry.id}`", _cell(entry.if_false), f"`{how}`"


def _counted(untried: Sequence[Assumption]) -> str:
    by_hand = [entry for entry in untried if entry.answer is None]
    reasons = Counter(map(why_by_hand, by_hand))
    return _COUNTS.format(
        trials=len(untried) - len(by_hand),
        untried=len(untried),
        by_hand=len(by_hand),
        reasons="\n".join(f"- {count} need {reason}." for reason, count in reasons.most_common()),
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


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(text: str) -> str:
    """Return a text formatted for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print((sentence if sys.argv[1:] == ["sentence"] else page)(load()), end="")
