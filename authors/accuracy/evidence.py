"""Shares of the predictions within the tolerance, by the planner's knowledge of their source, and each unseen one outside it.

docs/authors/accuracy.md describes the classes. A row is used for a constant or for a proof, never for both: `corpus.measured` refuses it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from authors.accuracy.bands import hits
from authors.accuracy.corpus.compared import ComparedFigure, JudgedBoot, compared, judged, started
from authors.accuracy.corpus.measured import KINDS, Measurements
from authors.accuracy.sweeps import ComparedPoint, all_points, comparisons

CLASSES: Final = ("first sight", "unseen", "known")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "decoding, one request": ("decode",),
    "start": ("load", "compile", "startup", "restart", "warm_restart"),
    "weights": ("checkpoint", "weights", "host_load_peak", "before_last_allocation"),
    "KV cache": ("kv", "kv_tokens", "kv_blocks", "kv_tokens_per_gib", "kv_concurrency", "kv_request"),
    "output rate, 16 or 64 requests": ("decode_16", "decode_64"),
}
"""Figures of the boots by subject; a test holds every kind to one."""
SWEPT: Final = (
    ("output rate at N users", "rate", 1.5),
    ("time to first token at N users", "ttft", 2.0),
    ("time per output token at N users", "tpot", 1.5),
)
"""Figures of the sweeps, with the factor that is tolerated."""


def evidence_rows(measurements: Measurements) -> list[Sequence[str]]:
    """Return the page's first table: figures of the boots, verdicts, rates and times of the sweeps, and their bands."""
    by_class = rows_by_class(measurements)
    rows: list[Sequence[str]] = []
    for group, keys in GROUPS.items():
        own = {name: [row for row in members if row.figure.key in keys] for name, members in by_class.items()}
        shares = [share(sum(row.is_within for row in own[name]), len(own[name])) for name in CLASSES]
        rows.append((group, f"{KINDS[keys[0]].tolerance:.0%}", *shares))
    return [*rows, *_verdict_rows(measurements), *_sweep_rows(measurements)]


def share(within: int, count: int) -> str:
    """Return a number of rows within their tolerance as text; empty without rows."""
    return f"{within} of {count} ({within / count:.0%})" if count else ""


def rows_by_class(measurements: Measurements) -> Mapping[str, Sequence[ComparedFigure]]:
    """Return all figures with their predictions, by class."""
    return {
        "first sight": first_sight(measurements),
        "unseen": list(compared(boot for boot in measurements.boots if boot.evidence == "unseen")),
        "known": list(compared(boot for boot in measurements.boots if boot.evidence == "known")),
    }


def first_sight(measurements: Measurements) -> Sequence[ComparedFigure]:
    """Return the figures whose prediction was recorded when they were first read."""
    return [
        ComparedFigure(boot=boot, figure=figure, predicted=figure.first)
        for boot in measurements.boots
        for figure in boot.figures
        if figure.first is not None
    ]


def missed(measurements: Measurements) -> list[Sequence[str]]:
    """Return each unseen prediction outside its tolerance: verdicts, figures of boots, and points of sweeps by deployment and figure."""
    unseen = [boot for boot in measurements.boots if boot.evidence == "unseen"]
    verdicts = [row for row in map(judged, started(unseen)) if row.is_counted and not row.is_right]
    rows: list[Sequence[str]] = [
        (row.boot.title, "verdict", "crashed" if row.boot.died else "runs", row.planned, _sources(row))
        for row in verdicts
    ]
    for row in compared(unseen):
        if not row.is_within:
            values = f"{row.figure.measured:,.3g}", f"{row.predicted:,.3g}"
            rows.append((row.boot.title, row.figure.kind.name, *values, _sources(row)))
    found: dict[tuple[str, str, str], list[ComparedPoint]] = defaultdict(list)
    points = [point for point in all_points() if point.is_unseen]
    for one in comparisons(points):
        found[one.point.deployment, one.figure, measurements.sources[one.point.source].citation].append(one)
    for title, figure, factor in SWEPT:
        for (deployment, name, citation), own in found.items():
            far = [one for one in own if one.factor > factor]
            if name == figure and far:
                ratios = sorted(1 / one.ratio for one in far)
                size = f"{ratios[0]:.2f} to {ratios[-1]:.2f} times" if len(far) > 1 else f"{ratios[0]:.2f} times"
                rows.append((deployment, title, f"{len(far)} of {len(own)} points", size, citation))
    return rows


def _sources(row: ComparedFigure | JudgedBoot) -> str:
    return ", ".join(source.citation for source in row.boot.sources)


def _verdict_rows(measurements: Measurements) -> list[Sequence[str]]:
    counted = [row for boot in started(measurements.boots) if (row := judged(boot)).is_counted]
    rows: list[Sequence[str]] = []
    for title, died in (("verdict, servers that crashed", True), ("verdict, servers that ran", False)):
        own = [row for row in counted if row.boot.died is died]
        first = [row.boot.first_right for row in own if row.boot.first_right is not None]
        rows.append((title, "", share(sum(first), len(first)), _right(own, "unseen"), _right(own, "known")))
    return rows


def _right(rows: Sequence[JudgedBoot], name: str) -> str:
    own = [row.is_right for row in rows if row.boot.evidence == name]
    return share(sum(own), len(own))


def _sweep_rows(measurements: Measurements) -> list[Sequence[str]]:
    by_class = [comparisons([one for one in all_points() if one.is_unseen is unseen]) for unseen in (True, False)]
    rows: list[Sequence[str]] = []
    for title, figure, factor in SWEPT:
        first = [source.first_points.get(figure, (0, 0)) for source in measurements.sources.values()]
        shares = [share(sum(within for within, _ in first), sum(count for _, count in first))]
        for members in by_class:
            close = [one.factor <= factor for one in members if one.figure == figure]
            shares.append(share(sum(close), len(close)))
        rows.append((title, f"{factor:g} times", *shares))
    held = {name: [one for one in hits(all_points()) if one.proof == name] for name in ("unseen", "known")}
    inside = [share(sum(one.inside for one in own), sum(one.points for one in own)) for own in held.values()]
    return [*rows, ("inside the stated band, sweeps", "", "", *inside)]
