"""Metrics of two plans, compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from planning.units import format_duration
from scripts.preview.plans import DescribedPlan

_CENTS_BELOW: Final = 100
_HALF_A_PERCENT: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """One row of the table, with a metric of the old and the new plan as text. None without a plan."""

    name: str
    before: str | None
    after: str | None
    change: str
    """The change as a percentage; empty if it is small or has nothing to compare with."""
    always: bool
    """True if the row is shown even when unchanged, as for costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    name: str
    value: Callable[[DescribedPlan], float]
    text: Callable[[DescribedPlan], str]
    always: bool = False


_FIGURES: Final = (
    _Figure(
        name="weights per device",
        value=lambda p: p.weights_gib,
        text=lambda p: f"{p.weights_gib:.2f} of {p.usable_gib:.1f} GiB",
    ),
    _Figure(name="KV cache", value=lambda p: p.kv_tokens, text=lambda p: f"{p.kv_tokens:,} tokens"),
    _Figure(
        name="concurrent max-length requests",
        value=lambda p: p.max_concurrency,
        text=lambda p: f"{p.max_concurrency:.1f}",
    ),
    _Figure(name="first start", value=lambda p: p.start_s, text=lambda p: duration(p.start_s)),
    _Figure(name="server restart", value=lambda p: p.restart_s, text=lambda p: duration(p.restart_s)),
    _Figure(name="TTFT, one request", value=lambda p: p.ttft_s, text=lambda p: f"{p.ttft_s * 1e3:,.0f} ms"),
    _Figure(
        name="output rate, one request",
        value=lambda p: p.decode_tok_per_s,
        text=lambda p: f"{p.decode_tok_per_s:,.0f} tok/s",
    ),
    _Figure(
        name="output rate at saturation",
        value=lambda p: p.saturated_tok_per_s,
        text=lambda p: f"{p.saturated_tok_per_s:,.0f} tok/s",
    ),
    _Figure(name="USD per hour", value=lambda p: p.usd_per_hour, text=lambda p: f"${p.usd_per_hour:,.2f}", always=True),
    _Figure(
        name="USD maximum",
        value=lambda p: p.max_usd,
        text=lambda p: f"${p.max_usd:,.2f} ({p.max_usd_basis})",
        always=True,
    ),
)


def figure_rows(before: DescribedPlan | None, after: DescribedPlan | None) -> Sequence[FigureRow]:
    """Return the metrics whose text differs, and the costs."""
    rows = [_row(figure, before, after) for figure in _FIGURES]
    return [row for row in rows if row.always or row.before != row.after]


def duration(seconds: float) -> str:
    """Return seconds as text, in whole minutes from two minutes on."""
    return format_duration(round(seconds)) if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - two minutes


def usd_change(before: DescribedPlan | None, after: DescribedPlan | None) -> str:
    """Return the price per hour before and after, in one cell."""
    texts = [f"{one.usd_per_hour:,.2f}" if one else "-" for one in (before, after)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} → **{texts[1]}**"


def most_change(before: DescribedPlan | None, after: DescribedPlan | None) -> str:
    """Return the maximum cost of a deployment before and after, in one cell."""
    texts = [f"{one.max_usd:,.{2 if one.max_usd < _CENTS_BELOW else 0}f}" if one else "-" for one in (before, after)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} → **{texts[1]}**"


def _row(figure: _Figure, before: DescribedPlan | None, after: DescribedPlan | None) -> FigureRow:
    old, new = (figure.text(one) if one else None for one in (before, after))
    change = _percent(figure.value(before), figure.value(after)) if before and after else ""
    return FigureRow(name=figure.name, before=old, after=new, change=change, always=figure.always)


def _percent(before: float, after: float) -> str:
    share = after / before - 1 if before else 0.0
    return f"{share * 100:+,.0f} %" if abs(share) >= _HALF_A_PERCENT else ""
