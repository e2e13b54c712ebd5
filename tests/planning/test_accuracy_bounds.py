"""How right the planner has to be: the bounds of known sources, and no worse on any figure than when its rows were first read.

What the planner cannot know of (`beyond` in the corpus, of a boot or of one figure) counts on docs/authors/accuracy.md and not here.
"""

from collections import Counter

from authors.accuracy.bands import comparisons, share_within
from authors.accuracy.corpus.errors import compared
from authors.accuracy.corpus.measured import STARTUP, load, read_off
from authors.accuracy.corpus.verdicts import judged, started
from authors.accuracy.evidence import first_sight
from authors.accuracy.sweeps import load_points

MEASURED = load()
KNOWN = [boot for boot in MEASURED.boots if boot.evidence == "known" and not boot.beyond]
LONGEST_INPUT_TOKENS = 65_536


def test_decoding_of_one_request_that_no_constant_was_fitted_to_is_within_a_fifth():
    fitted = {(boot.id, figure.key) for constant in MEASURED.constants for boot, figure in read_off(constant, MEASURED)}
    rows = [row for row in compared(KNOWN) if row.figure.key == "decode" and (row.boot.id, "decode") not in fitted]
    own = [row for row in rows if "field report" not in row.boot.sources[0].citation]
    close = [row for row in own if not row.figure.beyond]
    assert len(close) >= 7
    assert [f"{row.boot.id} {row.error:+.1%}" for row in close if abs(row.error) > 0.2] == []


def test_no_figure_is_planned_worse_than_at_first_sight():
    """Rows within their tolerance, by figure: a change that makes an unseen source worse has to say why."""
    rows = first_sight(MEASURED)
    then = Counter(row.figure.key for row in rows if row.is_within)
    boots = {row.boot.id: row.boot for row in rows}
    now = Counter(row.figure.key for row in compared(boots.values()) if row.is_within and row.figure.first is not None)
    assert len(rows) > 40
    assert {key: (count, now[key]) for key, count in then.items() if now[key] < count} == {}


def test_no_verdict_is_worse_than_at_first_sight():
    rows = [row for boot in started(MEASURED.boots) if boot.first_right and (row := judged(boot)).is_counted]
    assert len(rows) > 30
    worse = [row for row in rows if not row.is_right and not row.boot.beyond]
    assert [f"{row.boot.id}: planned {row.planned}" for row in worse] == []


def test_a_figure_that_leaves_its_bound_with_a_reason_still_leaves_it():
    """A reason that is no longer needed has to go."""
    excused = [row for row in compared(KNOWN) if row.figure.beyond]
    assert {row.figure.key for row in excused} == {"restart", "decode", "decode_16"}
    assert all(abs(row.error) > STARTUP for row in excused)


def test_verdicts_of_known_sources_are_right():
    verdicts = [judged(boot) for boot in started(tuple(KNOWN))]
    counted = [row for row in verdicts if row.is_counted]
    assert len(counted) > 20
    assert [f"{row.boot.id} {row.boot.outcome}, planned {row.planned}" for row in counted if not row.is_right] == []


def test_rates_of_other_days_at_n_users_are_within_one_and_a_half_times_for_85_percent_of_points():
    rates = [
        one
        for one in comparisons(load_points())
        if one.figure == "rate"
        and one.point.split != "fit"
        and one.point.users > 1
        and one.point.input_tokens <= LONGEST_INPUT_TOKENS
    ]
    assert len(rates) > 100
    assert share_within(rates, 1.5) >= 0.85
