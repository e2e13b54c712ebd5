"""Tables of dev/docs/accuracy.md, and the rows behind the page as CSV (`make docs`).

The tables are shares of the predictions within the tolerance, by device and by the planner's knowledge of their source, and each unseen one
outside it.
dev/docs/accuracy.md describes the classes. A row is used for a constant or for a proof, never for both.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from dev.authors.tables import csv_text, table
from dev.judges.accuracy.shares import (
    COMPARED,
    GROUPS,
    PUBLISHER_COLUMNS,
    Predictions,
    device_rows,
    publisher_rows,
    share_of,
    share_text,
)
from dev.judges.planted import refuse_planted
from gemma_serving.planning.speed.bands import Figure
from tests.planning.corpus.compared import (
    ComparedFigure,
    JudgedBoot,
    compared_figures,
    first_sight,
    judge_boot,
    started_boots,
)
from tests.planning.corpus.measured import KINDS, Boot, ReportSource, load
from tests.planning.corpus.sweeps import FACTORS, ComparedPoint, all_comparisons

COLUMNS = ("class", "source", "url", "row", "figure", "measured", "planned", "within", "remark")
CLASSES: Final = ("first sight", "unseen", "known")
SWEPT: Final[Mapping[Figure, str]] = {
    "rate": "output rate at N users",
    "ttft": "time to first token at N users",
    "tpot": "time per output token at N users",
}
"""Figures of the sweeps."""


def tables() -> Mapping[str, str]:
    """Return the tables by their markers."""
    planted_lie()
    found = Predictions(figures=_figures(), verdicts=_verdicts(), points=all_comparisons())
    compared = " | ".join(f"{name}:" for name in COMPARED)
    return {
        "accuracy-devices": table(f"devices | rows | sources: | publishers: | {compared}", device_rows(found)),
        "accuracy-shares": table(
            f"figure | tolerance: | {' | '.join(f'{name}:' for name in CLASSES)}", evidence_rows()
        ),
        "accuracy-publishers": table(PUBLISHER_COLUMNS, publisher_rows(found.points)),
        "accuracy-misses": table("what | figure | measured | planned | source", missed_predictions()),
    }


def rows_file() -> str:
    """Return every row as CSV: outcomes, figures and points, misses first in each class, with the constants that were set from them."""
    return csv_text(COLUMNS, sorted(_rows(), key=lambda row: (row[0] != "unseen", row[7] == "yes")))


@cache
def _verdicts() -> Sequence[JudgedBoot]:
    return tuple(map(judge_boot, started_boots(load().boots)))


@cache
def _figures() -> Sequence[ComparedFigure]:
    return tuple(compared_figures(load().boots))


def planted_lie() -> None:
    """Refuse the claim that three times a measured figure is within its tolerance."""
    wrong = [replace(one, predicted=3 * one.figure.measured) for one in _figures()]
    lie = "three times a figure is within its tolerance"
    refuse_planted(lie, lambda: share_of(one.is_within for one in wrong).startswith("0 of "))


def _rows() -> Iterator[Sequence[str]]:
    fitted = {row: f"set {name}" for row, name in load().fitted.items()}
    for row in _verdicts():
        boot = row.boot
        seen = f"crashed ({boot.at}): {boot.message}" if boot.died else "runs"
        reason = boot.superseded or boot.beyond or ("patched image" if boot.patched else "") or boot.ambiguous
        within = ("yes" if row.is_right else "no") if row.is_counted else "not counted"
        yield (*_head(boot), "verdict", seen, row.planned, within, reason)
    for one in _figures():
        remark = one.figure.beyond or fitted.get((one.boot.deployment_id, one.figure.key), "") or one.figure.note
        values = f"{one.figure.measured:.5g}", f"{one.predicted:.5g}", "yes" if one.is_within else "no"
        yield (*_head(one.boot), one.figure.kind.name, *values, remark)
    for one in all_comparisons():
        point, source = one.point, load().sources[one.point.source]
        name = f"{point.deployment}, {point.input_tokens} in, {point.output_tokens} out, {point.users} users"
        values = f"{one.measured:.5g}", f"{one.predicted:.5g}", "yes" if one.is_within else "no"
        remark = {"fit": "set constants", "band": "set bands", "held-out": ""}[point.split]
        yield (*_source(source), name, one.figure, *values, remark)


def _head(boot: Boot) -> tuple[str, str, str, str]:
    return boot.evidence, *_source(boot.sources[0])[1:], boot.title


def _source(source: ReportSource) -> tuple[str, str, str]:
    return "unseen" if source.unseen else "known", source.citation, source.url


def evidence_rows() -> list[Sequence[str]]:
    """Return the page's first table: figures of the boots, verdicts, rates and times of the sweeps, and their bands."""
    now = [[one for one in _figures() if one.boot.evidence == name] for name in ("unseen", "known")]
    by_class = [first_sight(load()), *now]
    rows: list[Sequence[str]] = []
    for group, keys in GROUPS.items():
        shares = [share_of(row.is_within for row in members if row.figure.key in keys) for members in by_class]
        rows.append((group, f"{KINDS[keys[0]].tolerance:.0%}", *shares))
    return [*rows, *_verdict_rows(), *_sweep_rows()]


def missed_predictions() -> list[Sequence[str]]:
    """Return each unseen prediction outside its tolerance: verdicts, figures of boots, and points of sweeps by deployment and figure."""
    rows: list[Sequence[str]] = [
        (row.boot.title, "verdict", "crashed" if row.boot.died else "runs", row.planned, _sources(row))
        for row in _verdicts()
        if row.boot.evidence == "unseen" and row.is_counted and not row.is_right
    ]
    for row in _figures():
        if row.boot.evidence == "unseen" and not row.is_within:
            values = f"{row.figure.measured:,.3g}", f"{row.predicted:,.3g}"
            rows.append((row.boot.title, row.figure.kind.name, *values, _sources(row)))
    for figure, title in SWEPT.items():
        found: dict[tuple[str, str], list[ComparedPoint]] = defaultdict(list)
        for one in all_comparisons():
            if one.figure == figure and one.point.is_unseen:
                found[one.point.deployment, load().sources[one.point.source].citation].append(one)
        for (deployment, citation), own in found.items():
            if ratios := sorted(1 / one.ratio for one in own if not one.is_within):
                size = f"{ratios[0]:.2f} to {ratios[-1]:.2f} times" if len(ratios) > 1 else f"{ratios[0]:.2f} times"
                rows.append((deployment, title, f"{len(ratios)} of {len(own)} points", size, citation))
    return rows


def _sources(row: ComparedFigure | JudgedBoot) -> str:
    return ", ".join(source.citation for source in row.boot.sources)


def _verdict_rows() -> Iterator[Sequence[str]]:
    counted = [row for row in _verdicts() if row.is_counted]
    for title, died in (("verdict, servers that crashed", True), ("verdict, servers that ran", False)):
        own = [row for row in counted if row.boot.died is died]
        first = share_of(row.boot.first_right for row in own if row.boot.first_right is not None)
        now = [share_of(row.is_right for row in own if row.boot.evidence == name) for name in ("unseen", "known")]
        yield title, "", first, *now


def _sweep_rows() -> Iterator[Sequence[str]]:
    by_class = [[one for one in all_comparisons() if one.point.is_unseen is unseen] for unseen in (True, False)]
    for figure, title in SWEPT.items():
        first = [source.first_points.get(figure, (0, 0)) for source in load().sources.values()]
        shares = [share_of(one.is_within for one in members if one.figure == figure) for members in by_class]
        yield title, f"{FACTORS[figure]:g} times", share_text(*map(sum, zip(*first, strict=True))), *shares
    inside = [share_of(one.is_in_band for one in members if one.point.split == "held-out") for members in by_class]
    yield "inside the stated band, sweeps", "", "", *inside
