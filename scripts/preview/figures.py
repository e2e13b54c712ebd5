"""Figures of two plans side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from planning.units import format_duration
from scripts.preview.plans import DescribedPlan

_CENTS_BELOW: Final = 100
_HALF_A_PERCENT: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """One line of the table: a figure of the old and of the new plan, in words. None without a plan."""

    name: str
    before: str | None
    after: str | None
    change: str
    """The change as a percentage, empty where it is small or there is nothing to compare."""
    always: bool
    """Whether it is shown although it did not change: money is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    name: str
    value: Callable[[DescribedPlan], float]
    text: Callable[[DescribedPlan], str]
    always: bool = False


_FIGURES: Final = (
    _Figure(
        name="weights a device",
        value=lambda p: p.weights_gib,
        text=lambda p: f"{p.weights_gib:.2f} of {p.usable_gib:.1f} GiB",
    ),
    _Figure(name="KV cache", value=lambda p: p.kv_tokens, text=lambda p: f"{p.kv_tokens:,} tokens"),
    _Figure(
        name="longest requests at once", value=lambda p: p.max_concurrency, text=lambda p: f"{p.max_concurrency:.1f}"
    ),
    _Figure(name="first start", value=lambda p: p.start_s, text=lambda p: duration(p.start_s)),
    _Figure(name="restart of the server", value=lambda p: p.restart_s, text=lambda p: duration(p.restart_s)),
    _Figure(name="first token, one request", value=lambda p: p.ttft_s, text=lambda p: f"{p.ttft_s * 1e3:,.0f} ms"),
    _Figure(
        name="rate, one request", value=lambda p: p.decode_tok_per_s, text=lambda p: f"{p.decode_tok_per_s:,.0f} tok/s"
    ),
    _Figure(
        name="rate, all requests",
        value=lambda p: p.saturated_tok_per_s,
        text=lambda p: f"{p.saturated_tok_per_s:,.0f} tok/s",
    ),
    _Figure(name="USD an hour", value=lambda p: p.usd_per_hour, text=lambda p: f"${p.usd_per_hour:,.2f}", always=True),
    _Figure(
        name="USD at most",
        value=lambda p: p.max_usd,
        text=lambda p: f"${p.max_usd:,.2f} ({p.max_usd_basis})",
        always=True,
    ),
)


def figure_rows(before: DescribedPlan | None, after: DescribedPlan | None) -> Sequence[FigureRow]:
    """Return the figures that differ in print, and those of money."""
    rows = [_row(figure, before, after) for figure in _FIGURES]
    return [row for row in rows if row.always or row.before != row.after]


def duration(seconds: float) -> str:
    """Return seconds as words, in whole minutes from two minutes on."""
    return format_duration(round(seconds)) if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - two minutes


def usd_change(before: DescribedPlan | None, after: DescribedPlan | None) -> str:
    """Return the price of an hour before and after, in one cell."""
    texts = [f"{one.usd_per_hour:,.2f}" if one else "-" for one in (before, after)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} → **{texts[1]}**"


def most_change(before: DescribedPlan | None, after: DescribedPlan | None) -> str:
    """Return the most that a deployment can cost before and after, in one cell."""
    texts = [f"{one.max_usd:,.{2 if one.max_usd < _CENTS_BELOW else 0}f}" if one else "-" for one in (before, after)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} → **{texts[1]}**"


def _row(figure: _Figure, before: DescribedPlan | None, after: DescribedPlan | None) -> FigureRow:
    old, new = (figure.text(one) if one else None for one in (before, after))
    change = _percent(figure.value(before), figure.value(after)) if before and after else ""
    return FigureRow(name=figure.name, before=old, after=new, change=change, always=figure.always)


def _percent(before: float, after: float) -> str:
    share = after / before - 1 if before else 0.0
    return f"{share * 100:+,.0f} %" if abs(share) >= _HALF_A_PERCENT else ""
