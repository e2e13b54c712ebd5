"""Tables of docs/authors/accuracy.md, written by `make docs`: the unseen first, wrong verdicts first, misses first."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from authors.accuracy.bands import hits
from authors.accuracy.constants import Refit, is_number, predicted, refits
from authors.accuracy.corpus.compared import ComparedFigure, JudgedBoot, compared, judged, started
from authors.accuracy.corpus.measured import KINDS, Boot, Measurements, ReportSource, load, read_off
from authors.accuracy.evidence import CLASSES, evidence_rows
from authors.accuracy.sweeps import ComparedPoint, all_points, comparisons, share_within
from authors.tables import table
from planning.data import overheads

_PRECISE_BELOW: Final = 100
_TINY: Final = 0.01

_SETS: Final = {"unseen": "unseen", "held-out": "known, set nothing", "band": "set bands", "fit": "set constants"}
_SWEPT: Final = {"rate": "output rate", "ttft": "time to first token", "tpot": "time per output token"}
_CONTEXTS: Final = (("up to 1,500", 1_500), ("to 5,000", 5_000), ("to 20,000", 20_000), ("to 70,000", 70_000))
_USERS: Final = (("1", 1), ("2 to 8", 8), ("9 to 32", 32), ("33 and more", 2**31))


def tables() -> Mapping[str, str]:
    """Return the tables of the page by their markers."""
    return tables_of(load())


def tables_of(measurements: Measurements) -> Mapping[str, str]:
    """Return the tables for a corpus."""
    rows, found = list(compared(measurements.boots)), refits(measurements)
    boots = measurements.boots
    unclear = ((boot.title, boot.image or "not stated", _cell(boot.ambiguous or boot.beyond)) for boot in boots)
    return {
        "accuracy-shares": table(
            f"figure | tolerance: | {' | '.join(f'{name}:' for name in CLASSES)}", evidence_rows(measurements, found)
        ),
        "accuracy-verdicts": _verdicts(measurements),
        "accuracy-errors": table(
            "metric | rows: | tolerance: | within it: | bias: | median: | 90th percentile: | worst: | worst row",
            [row for kind in KINDS for row in _error_rows(kind, rows)],
        ),
        "accuracy-measurements": _figures(rows, measurements),
        "accuracy-constants": _constants(measurements, found),
        "accuracy-sweeps": _sweeps(),
        "accuracy-bands": table(
            "figure | class | points | in the band: | share:",
            [
                (
                    _SWEPT[one.figure],
                    one.kind,
                    one.proof,
                    f"{one.inside} of {one.points}",
                    f"{one.inside / one.points:.0%}",
                )
                for one in hits(all_points())
            ],
        ),
        "accuracy-ambiguities": table("deployment | image | ambiguity", [row for row in unclear if row[2]]),
        "accuracy-sources": table(
            "source | date | boots: | crashed: | class | used for",
            [
                _source_row(source, measurements)
                for source in sorted(measurements.sources.values(), key=lambda source: not source.unseen)
            ],
        ),
    }


def _verdicts(measurements: Measurements) -> str:
    rows = [judged(boot) for boot in started(measurements.boots)]
    counted = [row for row in rows if row.is_counted]
    unseen = [row for row in counted if row.boot.evidence == "unseen"]
    died = [row for row in counted if row.boot.died]
    shown = sorted(rows, key=_by_importance)
    return (
        f"Correct verdicts: {_right(counted)}. Unseen: {_right(unseen)}. Servers that crashed: {_right(died)}.\n\n"
        + table("deployment | outcome | planned | verdict | class | source", map(_verdict_row, shown))
    )


def _right(rows: Sequence[JudgedBoot]) -> str:
    return f"{sum(row.is_right for row in rows)} of {len(rows)}"


def _by_importance(row: JudgedBoot) -> tuple[bool, bool, bool]:
    """Return a sort key: wrong verdicts before correct ones, and failures before successes."""
    return (row.is_right or not row.is_counted, row.is_right, not row.boot.died)


def _verdict_row(row: JudgedBoot) -> Sequence[str]:
    boot = row.boot
    seen = f"crashed ({boot.at}): {_cell(boot.message)}" if boot.died else "runs"
    verdict = ("correct" if row.is_right else "**wrong**") if row.is_counted else "not counted"
    beyond, patched = "" if row.is_right else boot.beyond, "patched image" if boot.patched and not boot.died else ""
    reason = boot.superseded or beyond or patched
    return boot.title, seen, row.planned, f"{verdict}: {reason}" if reason else verdict, boot.evidence, _cited(boot)


def _error_rows(key: str, rows: Sequence[ComparedFigure]) -> Iterable[Sequence[object]]:
    """Yield the distribution of a kind's errors: of unseen sources, and of known ones."""
    kind = KINDS[key]
    for name in ("unseen", "known"):
        own = [row for row in rows if row.figure.kind is kind and row.boot.evidence == name]
        if own:
            within, bias = sum(row.is_within for row in own), statistics.median(row.error for row in own)
            sizes = sorted(abs(row.error) for row in own)
            errors = f"{statistics.median(sizes):.1%}", f"{percentile(sizes, 90):.1%}", f"{sizes[-1]:.1%}"
            worst = max(own, key=lambda row: abs(row.error)).boot.title
            yield f"{kind.name}, {name}", len(own), f"{kind.tolerance:.0%}", within, f"{bias:+.1%}", *errors, worst


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the ordered values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _figures(rows: Sequence[ComparedFigure], measurements: Measurements) -> str:
    # A value of another boot of the same deployment is a repeat of it.
    fitted = {
        (boot.deployment_id, figure.key): f"`{constant.name}`"
        for constant in measurements.constants
        for boot, figure in read_off(constant, measurements)
    }
    shown = sorted(rows, key=lambda row: (row.is_within, row.boot.evidence == "known"))
    return (
        f"Rows outside their tolerance come first: {sum(not row.is_within for row in rows)} of {len(rows)}.\n\n"
        + table(
            "deployment | metric | predicted: | measured: | error: | class | fitted to it | source",
            [_figure_row(row, fitted.get((row.boot.deployment_id, row.figure.key), "")) for row in shown],
        )
    )


def _figure_row(row: ComparedFigure, fitted: str) -> Sequence[str]:
    figure, boot, kind = row.figure, row.boot, row.figure.kind
    unit = f" {kind.unit}" if kind.unit else ""
    values = f"{_number(row.predicted)}{unit}", f"{_number(figure.measured)}{unit}", f"{row.error:+.1%}"
    evidence = f"{boot.evidence}{f', outside the bounds: {_cell(figure.beyond)}' if figure.beyond else ''}"
    return boot.title, kind.name, *values, evidence, fitted, _cited(boot)


def _constants(measurements: Measurements, found: Sequence[Refit]) -> str:
    head = "constant | value: | without this source | refitted value: | row of the source | error: | refitted error:"
    rows = [row for refit in found if is_number(refit.constant) for row in _refit_rows(refit)]
    gone = [f"`{constant.name}`" for constant in measurements.constants if not is_number(constant.name)]
    return table(head, rows) + (f"\nNo longer single numbers in the planner: {', '.join(gone)}.\n" if gone else "")


def _refit_rows(refit: Refit) -> Iterable[Sequence[str]]:
    name, value = refit.constant, float(getattr(overheads, refit.constant))
    then = "no other source" if refit.value is None else _number(refit.value)
    for boot, figure in refit.rows:
        now = f"{predicted(name, value, boot, figure) / figure.measured - 1:+.1%}"
        refitted = (
            "" if refit.value is None else f"{predicted(name, refit.value, boot, figure) / figure.measured - 1:+.1%}"
        )
        yield f"`{name}`", _number(value), refit.source, then, f"{boot.title}, {figure.kind.name}", now, refitted


def _sweeps() -> str:
    points = all_points()
    found = comparisons(points)
    excluded = sum(not point.is_comparable for point in points)
    sets = {
        name: [one for one in found if ("unseen" if one.point.is_unseen else one.point.split) == name] for name in _SETS
    }
    rows = [
        (title, word, *_spread(members))
        for name, title in _SETS.items()
        for figure, word in _SWEPT.items()
        if (members := [one for one in sets[name] if one.figure == figure])
    ]
    parts = [
        f"{len(points)} points of closed loops. {excluded} points from the prefix cache, certain or possible, are excluded.\n",
        table(f"set | figure | {_SPREAD}", rows),
    ]
    for name, title in _SETS.items():
        rates = [one for one in sets[name] if one.figure == "rate"]
        classes = [(*key, *_spread(members)) for key, members in by_class(rates).items()]
        parts += [
            f"### Output rate by context and users: {title}\n",
            table(f"context | users | {_SPREAD}", classes),
        ]
    return "\n".join(parts)


def by_class(found: Sequence[ComparedPoint]) -> Mapping[tuple[str, str], Sequence[ComparedPoint]]:
    """Return the comparisons by context and users, in this order and without empty classes."""
    classes: dict[tuple[int, int], list[ComparedPoint]] = {}
    for one in found:
        context = next(number for number, (_, most) in enumerate(_CONTEXTS) if one.point.input_tokens <= most)
        users = next(number for number, (_, most) in enumerate(_USERS) if one.point.users <= most)
        classes.setdefault((context, users), []).append(one)
    return {(_CONTEXTS[context][0], _USERS[users][0]): classes[context, users] for context, users in sorted(classes)}


_SPREAD: Final = (
    "points: | predicted over measured: | typical factor: | within 30 %: | within 1.5x: | within 2x: | p90:"
)


def _spread(found: Sequence[ComparedPoint]) -> Sequence[object]:
    """Return the columns of the distance of predicted from measured values."""
    factors = sorted(one.factor for one in found)
    bias, typical = statistics.median(1 / one.ratio for one in found), statistics.median(factors)
    shares = (f"{share_within(found, factor):.0%}" for factor in (1.3, 1.5, 2))
    return len(found), f"{bias:.2f}", f"{typical:.2f}x", *shares, f"{percentile(factors, 90):.2f}x"


def _source_row(source: ReportSource, measurements: Measurements) -> Sequence[object]:
    own = [boot for boot in measurements.boots if source in boot.sources]
    names = [
        f"`{constant.name}`"
        for constant in measurements.constants
        if any(source in boot.sources for boot, _ in read_off(constant, measurements))
    ]
    used = ", ".join(filter(None, (*names, source.used))) or "formulas, rules and tests"
    name = f"[{source.citation}]({source.url})" if source.url else source.citation
    evidence, used = ("unseen", "nothing") if source.unseen else ("known", used)
    return name, source.date or "", len(own), sum(boot.died for boot in own), evidence, used


def _cited(boot: Boot) -> str:
    return ", ".join(source.citation for source in boot.sources)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _number(value: float) -> str:
    if 0 < value < _TINY:
        return f"{value:.3g}"
    return f"{value:,.2f}" if value < _PRECISE_BELOW else f"{value:,.0f}"
