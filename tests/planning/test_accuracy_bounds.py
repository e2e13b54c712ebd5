"""How right the planner has to be about boots that nothing was chosen with in view: the bounds, and the rows that leave them.

What the planner cannot know of (`beyond` in the corpus, of a boot or of one figure) counts on docs/authors/accuracy.md and not here.
"""

import pytest

from authors.accuracy.bands import comparisons, share_within
from authors.accuracy.sweeps import load_points
from scripts.plan.corpus.errors import compared
from scripts.plan.corpus.measured import STARTUP, load
from scripts.plan.corpus.verdicts import judged, started

MEASURED = load()
HELD_OUT = [boot for boot in MEASURED.boots if boot.is_held_out and not boot.beyond]
ROWS = [row for row in compared(HELD_OUT) if not row.figure.beyond]
LONGEST_INPUT_TOKENS = 65_536


def leaving(keys: set[str], bound: float) -> list[str]:
    """Return the held-out rows of some kinds of figures whose error exceeds the bound, each with its error."""
    rows = [row for row in ROWS if row.figure.key in keys]
    assert rows
    return [
        f"{row.boot.id} {row.figure.key}: planned {row.predicted:,.6g}, measured {row.figure.measured:,.6g}, {row.error:+.1%}"
        for row in rows
        if abs(row.error) > bound
    ]


@pytest.mark.parametrize(
    ("keys", "bound"),
    [
        pytest.param({"kv", "kv_tokens", "kv_blocks", "kv_request"}, 0.05, id="KV cache within 5 %"),
        pytest.param({"weights", "checkpoint"}, 0.03, id="weights within 3 %"),
        pytest.param({"startup", "restart", "warm_restart"}, 0.25, id="start-up within 25 %"),
        pytest.param({"decode"}, 0.20, id="decoding of one request within 20 %"),
    ],
)
def test_held_out_figures_are_within_their_bound(keys: set[str], bound: float):
    assert leaving(keys, bound) == []


def test_a_figure_that_leaves_its_bound_with_a_reason_still_leaves_it():
    """A reason that is no longer needed has to go."""
    excused = [row for row in compared(HELD_OUT) if row.figure.beyond]
    assert {row.figure.key for row in excused} == {"restart"}
    assert all(abs(row.error) > STARTUP for row in excused)


def test_held_out_verdicts_are_right():
    verdicts = [judged(boot) for boot in started(tuple(HELD_OUT))]
    counted = [row for row in verdicts if row.is_counted]
    assert len(counted) > 20
    assert [f"{row.boot.id} {row.boot.outcome}, planned {row.planned}" for row in counted if not row.is_right] == []


def test_held_out_rates_at_n_users_are_within_one_and_a_half_times_for_85_percent_of_points():
    rates = [
        one
        for one in comparisons(load_points())
        if one.figure == "rate"
        and one.point.split == "held-out"
        and one.point.users > 1
        and one.point.input_tokens <= LONGEST_INPUT_TOKENS
    ]
    assert len(rates) > 100
    assert share_within(rates, 1.5) >= 0.85
