"""Tables of docs/authors/accuracy.md, written by `make docs`: the unseen first, wrong verdicts first, misses first.

The page describes the classes of predictions. A row is used for a constant or for a proof, never for both: `corpus.measured` refuses it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from authors.accuracy.bands import hits
from authors.accuracy.corpus.compared import ComparedFigure, JudgedBoot, compared, judged, started
from authors.accuracy.corpus.measured import KINDS, Boot, Measurements, ReportSource, load, read_off
from authors.accuracy.sweeps import ComparedPoint, all_points, comparisons, share_within
from authors.tables import table

_PRECISE_BELOW: Final = 100
_TINY: Final = 0.01

_SETS: Final = {"unseen": "unseen", "held-out": "known, set nothing", "band": "set bands", "fit": "set constants"}
_SWEPT: Final = {"rate": "output rate", "ttft": "time to first token", "tpot": "time per output token"}

CLASSES: Final = ("first sight", "unseen", "known")
_SWEEPS: Final = (
    ("output rate at N users", "rate", 1.5),
    ("time to first token at N users", "ttft", 2.0),
    ("time per output token at N users", "tpot", 1.5),
)
"""Figures of the sweeps, with the factor that is tolerated."""


def tables() -> Mapping[str, str]:
    """Return the tables of the page by their markers."""
    return tables_of(load())


def tables_of(measurements: Measurements) -> Mapping[str, str]:
    """Return the tables for a corpus."""
    rows = list(compared(measurements.boots))
    boots = measurements.boots
    unclear = ((boot.title, boot.image or "not stated", _cell(boot.ambiguous or boot.beyond)) for boot in boots)
    return {
        "accuracy-shares": table(
            f"figure | tolerance: | {' | '.join(f'{name}:' for name in CLASSES)}", evidence_rows(measurements)
        ),
        "accuracy-verdicts": _verdicts(measurements),
        "accuracy-measurements": _figures(rows, measurements),
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


def evidence_rows(measurements: Measurements) -> list[Sequence[str]]:
    """Return the page's first table: verdicts, each figure of the boots, and rates and times of the sweeps."""
    by_class: Mapping[str, Sequence[ComparedFigure]] = {
        "first sight": first_sight(measurements),
        **{name: list(compared(b for b in measurements.boots if b.evidence == name)) for name in CLASSES[1:]},
    }
    rows = _verdict_rows(measurements)
    for kind in KINDS.values():
        own = {name: [row for row in members if row.figure.kind is kind] for name, members in by_class.items()}
        if any(own.values()):
            shares = [share(sum(row.is_within for row in own[name]), len(own[name])) for name in CLASSES]
            rows.append((kind.name, f"{kind.tolerance:.0%}", *shares))
    return [*rows, *_sweep_rows(measurements)]


def share(within: int, count: int) -> str:
    """Return a number of rows within their tolerance as text; empty without rows."""
    return f"{within} of {count} ({within / count:.0%})" if count else ""


def first_sight(measurements: Measurements) -> Sequence[ComparedFigure]:
    """Return the figures whose prediction was recorded when they were first read."""
    return [
        ComparedFigure(boot=boot, figure=figure, predicted=figure.first)
        for boot in measurements.boots
        for figure in boot.figures
        if figure.first is not None
    ]


def _verdict_rows(measurements: Measurements) -> list[Sequence[str]]:
    counted = [row for boot in started(measurements.boots) if (row := judged(boot)).is_counted]
    rows: list[Sequence[str]] = []
    for title, died in (("verdict, servers that crashed", True), ("verdict, servers that ran", False)):
        own = [row for row in counted if row.boot.died is died]
        first = [row.boot.first_right for row in own if row.boot.first_right is not None]
        rows.append((title, "", share(sum(first), len(first)), *(_right_share(own, name) for name in CLASSES[1:])))
    return rows


def _right_share(rows: Sequence[JudgedBoot], name: str) -> str:
    own = [row.is_right for row in rows if row.boot.evidence == name]
    return share(sum(own), len(own))


def _sweep_rows(measurements: Measurements) -> list[Sequence[str]]:
    by_class = [comparisons([one for one in all_points() if one.is_unseen is unseen]) for unseen in (True, False)]
    rows: list[Sequence[str]] = []
    for title, figure, factor in _SWEEPS:
        first = [source.first_points.get(figure, (0, 0)) for source in measurements.sources.values()]
        shares = [share(sum(within for within, _ in first), sum(count for _, count in first))]
        for members in by_class:
            close = [one.factor <= factor for one in members if one.figure == figure]
            shares.append(share(sum(close), len(close)))
        rows.append((title, f"{factor:g} times", *shares))
    return rows


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
    return "\n".join(parts)


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
