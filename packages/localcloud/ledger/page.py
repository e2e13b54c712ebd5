"""Page about the ledger: `python -m localcloud.ledger.page` prints docs/authors/assumptions.md, with `sentence` README's sentence."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files

from localcloud.ledger.entries import DANGERS, Assumption, Ledger, NotModelled, load, why_by_hand

_TRIED = """
## Tried on a real project

| id | result |
| --- | --- |
"""


def sentence(ledger: Ledger) -> str:
    """Return the number of entries, and how many of them a command tries, as README's sentence."""
    trials = sum(entry.answer is not None for entry in ledger.assumptions)
    return (
        f"The simulation rests on {len(ledger.assumptions)} [assumptions](docs/authors/assumptions.md); "
        f"`python -m localcloud try` tests {trials} of them on your project, within a budget.\n"
    )


def page(ledger: Ledger) -> str:
    """Return the page: `page.md` with its tables."""
    entries = sorted(ledger.assumptions, key=_by_danger)
    untried = [entry for entry in entries if not entry.tried]
    by_hand = [entry for entry in untried if entry.answer is None]
    reasons = Counter(map(why_by_hand, by_hand)).most_common()
    tried = [(f"`{entry.id}`", _cell(entry.tried)) for entry in entries if entry.tried]
    of_kind = {kind: [_statement(each) for each in entries if each.kind == kind] for kind in ("refusal", "behavior")}
    return (
        (files("localcloud.ledger") / "page.md")
        .read_text(encoding="utf-8")
        .format(
            critical=_rows(_decision(each) for each in untried if each.danger == "critical"),
            trials=len(untried) - len(by_hand),
            untried=len(untried),
            by_hand=len(by_hand),
            reasons="; ".join(f"{count} need {reason}" for reason, count in reasons),
            dangers=_rows(_dangers(entries)),
            **{kind: _rows(rows) for kind, rows in of_kind.items()},
            lenient=_rows(_statement(entry)[:-1] for entry in entries if entry.kind == "lenient"),
            not_modelled="".join(map(_reason, ledger.not_modelled)),
            commands=_rows(map(_command, untried)),
            tried=_TRIED + _rows(tried) if tried else "",
        )
    )


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


def _dangers(entries: Sequence[Assumption]) -> Iterable[tuple[str, ...]]:
    for danger, meaning in DANGERS.items():
        found = [entry for entry in entries if entry.danger == danger]
        yield danger, str(len(found)), str(sum(bool(entry.tried) for entry in found)), meaning


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
