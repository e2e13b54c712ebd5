"""The page docs/authors/accuracy.md: outcomes with the wrong verdicts first, errors with their distribution, constants, sweeps, contradictions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from authors.accuracy.bands import BandComparison, comparisons
from authors.accuracy.constants import gone, leave_one_out
from authors.accuracy.rates import RateSpread, by_class, rate_spread_of
from authors.accuracy.sweeps import SweepPoint
from scripts.plan.corpus.errors import ComparedFigure, compared, spread_of
from scripts.plan.corpus.measured import KINDS, Boot, FigureKind, Measurements, ReportSource, read_off
from scripts.plan.corpus.verdicts import JudgedBoot, judged, started

_PRECISE_BELOW: Final = 100
_TINY: Final = 0.01

_HEAD: Final = """# How right the planner is

Written by `python -m authors.accuracy`; a test fails when this page is out of date.
The corpus is `scripts/plan/corpus/measured.toml` (boots with their outcomes and figures) and `sweeps.csv` (sweep points).
Each source stands here with its failures: a test fails if a boot of a quoted source that died is missing.
No figure of a deployment enters a formula: the planner computes from dimensions and from the constants in `planning/data/overheads.py`.
To add a boot of your own: `python -m scripts.plan learn LOG`.

A row is **independent** if no constant was read off it. **Held out** rows were collected after the formulas were written; nothing was chosen
with them in view, and they are the ones that say how right the planner is about your deployment.
"""


def page(measurements: Measurements, points: Sequence[SweepPoint]) -> str:
    """Return the page as Markdown."""
    rows = list(compared(measurements.boots))
    return (
        "\n".join(
            [
                _HEAD,
                *_outcomes(measurements),
                *_distributions(rows),
                *_figures(rows, measurements),
                *_constants(measurements),
                *_sweeps(points),
                *_ambiguities(measurements),
                "\n## Where reports contradict themselves or each other\n",
                "| the report says | the planner says | why |",
                "| --- | --- | --- |",
                *(f"| {row.report} | {row.planner} | {row.why} |" for row in measurements.contradictions),
                "\n## What was read and left out\n",
                "| what | why |",
                "| --- | --- |",
                *(f"| {row.what} | {row.why} |" for row in measurements.left_out),
                *_source_list(measurements),
            ]
        )
        + "\n"
    )


def _outcomes(measurements: Measurements) -> list[str]:
    rows = [judged(boot) for boot in started(measurements.boots)]
    counted = [row for row in rows if row.is_counted]
    held_out = [row for row in counted if row.boot.is_held_out]
    died = [row for row in counted if row.boot.died]
    return [
        "## Will it run?\n",
        f"{_share(counted)} verdicts are right, {_share(held_out)} of the held-out ones, {_share(died)} of the servers that died.",
        "`may fail` is right where the server died while it loaded its programs, or ran with less than 1 GiB to spare: of the device, or of the KV",
        "cache beside one longest request.",
        "A verdict does not count where a later image did what this one could not, or where the image was patched until it ran.\n",
        "| deployment | what became of it | planned | verdict | held out | source |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_outcome_row(row) for row in sorted(rows, key=_by_importance)),
    ]


def _share(rows: Sequence[JudgedBoot]) -> str:
    return f"{sum(row.is_right for row in rows)} of {len(rows)}"


def _by_importance(row: JudgedBoot) -> tuple[bool, bool, bool]:
    """Order wrong verdicts before right ones, and failures before successes."""
    return (row.is_right or not row.is_counted, row.is_right, not row.boot.died)


def _outcome_row(row: JudgedBoot) -> str:
    boot = row.boot
    seen = f"died ({boot.died_at}): {_cell(boot.message)}" if boot.died else "runs"
    verdict = ("right" if row.is_right else "**wrong**") if row.is_counted else "not counted"
    reason = (
        boot.superseded
        or ("" if row.is_right else boot.beyond)
        or ("patched image" if boot.is_patched and not boot.died else "")
    )
    verdict += f": {reason}" if reason else ""
    return f"| {boot.title} | {seen} | {row.planned} | {verdict} | {_yes(boot.is_held_out)} | {_cited(boot.sources)} |"


def _distributions(rows: Sequence[ComparedFigure]) -> list[str]:
    return [
        "\n## How far off\n",
        "Errors are predicted over measured, less one. The bias is the median with its sign; the other columns are without signs.",
        "The 90th percentile is the error that nine of ten rows do not exceed.\n",
        "| figure | rows | tolerance | within it | bias | median | 90th percentile | worst | worst row |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *(line for kind in KINDS.values() for line in _kind_lines(kind, rows)),
    ]


def _kind_lines(kind: FigureKind, rows: Sequence[ComparedFigure]) -> list[str]:
    own = [row for row in rows if row.figure.kind is kind]
    held_out = [row for row in own if row.boot.is_held_out]
    lines = [_spread_row(kind.name, kind, own)] if own else []
    return lines + ([_spread_row(f"{kind.name}, held out", kind, held_out)] if held_out else [])


def _spread_row(name: str, kind: FigureKind, rows: Sequence[ComparedFigure]) -> str:
    spread = spread_of([row.error for row in rows])
    within = sum(row.is_within for row in rows)
    worst = max(rows, key=lambda row: abs(row.error))
    return (
        f"| {name} | {spread.count} | {kind.tolerance:.0%} | {within} | {spread.bias:+.1%} | {spread.median:.1%} "
        f"| {spread.p90:.1%} | {spread.worst:.1%} | {worst.boot.title} |"
    )


def _figures(rows: Sequence[ComparedFigure], measurements: Measurements) -> list[str]:
    read = _read_by(measurements)
    outside = sum(not row.is_within for row in rows)
    return [
        "\n## Every figure\n",
        f"Rows outside their tolerance come first: {outside} of {len(rows)}.\n",
        "| deployment | figure | predicted | measured | error | independent | held out | source |",
        "| --- | --- | ---: | ---: | ---: | --- | --- | --- |",
        *(_figure_row(row, read) for row in sorted(rows, key=lambda row: (row.is_within, row.boot.is_held_out))),
    ]


def _read_by(measurements: Measurements) -> Mapping[tuple[str, str], str]:
    """Return the constant that was read off a figure, by deployment and kind: another boot of the same deployment is a repeat of it."""
    return {
        (boot.deployment_id, figure.key): constant.name
        for constant in measurements.constants
        for boot, figure in read_off(constant, measurements)
    }


def _figure_row(row: ComparedFigure, read: Mapping[tuple[str, str], str]) -> str:
    figure, boot = row.figure, row.boot
    unit = f" {figure.kind.unit}" if figure.kind.unit else ""
    numbers = f"{_number(row.predicted)}{unit} | {_number(figure.measured)}{unit} | {row.error:+.1%}"
    constant = read.get((boot.deployment_id, figure.key))
    independent = "yes" if constant is None else f"no: `{constant}`"
    held_out = f"{_yes(boot.is_held_out)}{f', outside the bounds: {_cell(figure.beyond)}' if figure.beyond else ''}"
    return f"| {boot.title} | {figure.kind.name} | {numbers} | {independent} | {held_out} | {_cited(boot.sources)} |"


def _constants(measurements: Measurements) -> list[str]:
    lines = [
        "\n## Constants without each of their sources\n",
        "Each constant that was read off runs is fitted again to its other sources, and the rows of the source are predicted with that.",
        "Without another source there is nothing to fit, so the rows of that source prove nothing.\n",
        "| constant | value | without this source | value then | its row | error now | error then |",
        "| --- | ---: | --- | ---: | --- | ---: | ---: |",
    ]
    for left in leave_one_out(measurements):
        then = "no other source" if left.without is None else _number(left.without)
        for now, without in left.figures:
            error = "" if without is None else f"{without.error:+.1%}"
            row = f"{now.boot.title}, {now.figure.kind.name}"
            lines.append(
                f"| `{left.constant}` | {_number(left.value)} | {left.source} | {then} | {row} | {now.error:+.1%} | {error} |"
            )
    if names := gone(measurements):
        lines.append(f"\nNo longer single numbers of the planner: {', '.join(f'`{name}`' for name in names)}.")
    return lines


def _sweeps(points: Sequence[SweepPoint]) -> list[str]:
    found = comparisons(points)
    rates = {name: [one for one in found if one.figure == "rate" and one.point.split == name] for name in _SETS}
    left_out = sum(not point.is_comparable for point in points)
    lines = [
        "\n## Sweeps: rates and times at N users\n",
        f"{len(points)} points of closed loops; {left_out} that came from the prefix cache, or may have, are left out here.",
        "Constants of the rates may be fitted on the points of 2026-07-25 only.",
        "A factor is the larger of predicted and measured over the smaller. Times are those of points with more than one wave of requests.\n",
        _RATE_HEAD.format(first="set", second="figure"),
        _RATE_LINE,
        *(
            _rate_row(title, word, members)
            for name, title in _SETS.items()
            for figure, word in _SWEPT.items()
            if (members := [one for one in found if one.figure == figure and one.point.split == name])
        ),
    ]
    several = [one for one in rates["held-out"] if one.point.users > 1]
    lines.append(_rate_row("held out, more than one user", _SWEPT["rate"], several))
    for name, title in _SETS.items():
        lines += [
            f"\n### Output rate by context and users: {title}\n",
            _RATE_HEAD.format(first="context", second="users"),
            _RATE_LINE,
            *(_rate_row(*key, members) for key, members in by_class(rates[name]).items()),
        ]
    return lines


_SETS: Final = {"fit": "fit (2026-07-25)", "held-out": "held out"}
_SWEPT: Final = {"rate": "output rate", "ttft": "time to first token", "tpot": "time per output token"}
_RATE_HEAD: Final = "| {first} | {second} | points | predicted over measured | typical factor | within 30 % | within 1.5x | within 2x | p90 |"
_RATE_LINE: Final = "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"


def _rate_row(first: str, second: str, found: Sequence[BandComparison]) -> str:
    spread: RateSpread = rate_spread_of(found)
    return (
        f"| {first} | {second} | {spread.count} | {spread.bias:.2f} | {spread.typical:.2f}x | {spread.within_30_percent:.0%} "
        f"| {spread.within_1_5:.0%} | {spread.within_2:.0%} | {spread.p90:.2f}x |"
    )


def _ambiguities(measurements: Measurements) -> list[str]:
    return [
        "\n## What the sources leave open\n",
        "| deployment | image | what is ambiguous |",
        "| --- | --- | --- |",
        *(
            f"| {boot.title} | {boot.image or 'not stated'} | {_cell(boot.ambiguous or boot.beyond)} |"
            for boot in measurements.boots
            if boot.ambiguous or boot.beyond
        ),
    ]


def _source_list(measurements: Measurements) -> list[str]:
    return [
        "\n## Sources\n",
        "| source | date | boots | died |",
        "| --- | --- | ---: | ---: |",
        *(_source_row(source, measurements.boots) for source in measurements.sources.values()),
    ]


def _source_row(source: ReportSource, boots: Sequence[Boot]) -> str:
    own = [boot for boot in boots if source in boot.sources]
    name = f"[{source.citation}]({source.url})" if source.url else source.citation
    return f"| {name} | {source.date or ''} | {len(own)} | {sum(boot.died for boot in own)} |"


def _cited(sources: Iterable[ReportSource]) -> str:
    return ", ".join(source.citation for source in sources)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _yes(value: bool) -> str:
    return "yes" if value else ""


def _number(value: float) -> str:
    if 0 < value < _TINY:
        return f"{value:.3g}"
    return f"{value:,.2f}" if value < _PRECISE_BELOW else f"{value:,.0f}"
