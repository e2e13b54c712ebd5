"""Bands are those of the corpus, and the corpus says how well the formulas do."""

import pytest

from authors.accuracy.bands import cached_shares, comparisons, is_one_wave, learned, share_within
from authors.accuracy.sweeps import load_points
from planning.speed.bands import BANDS, Figure, Kind, Spread, band

POINTS = load_points()
FOUND = comparisons(POINTS)


def test_the_table_is_what_the_corpus_gives():
    """After a change of the formulas or of the corpus: python -m authors.accuracy.bands prints the table."""
    assert {key: spread for key, spread in BANDS.items() if spread.points} == learned(POINTS)


def test_what_no_point_supports_says_so():
    assert {key for key, spread in BANDS.items() if spread.points == 0} == {
        (f, "gpu") for f in ("rate", "tpot", "ttft")
    }


@pytest.mark.parametrize("key", BANDS)
def test_a_band_contains_the_planned_value(key: tuple[Figure, Kind]):
    figure, kind = key
    found = band(figure, kind, 2.0)
    assert 0 < found.low <= found.typical == 2.0 <= found.high


@pytest.mark.parametrize(("split", "count"), [("fit", 245), ("held-out", 140)])
def test_rates_of_any_length_and_number_of_users_are_within_a_factor_of_one_and_a_half(split: str, count: int):
    rates = [c for c in FOUND if c.figure == "rate" and c.point.split == split]
    assert len(rates) == count
    assert share_within(rates, 1.5) >= 0.95


def test_held_out_rates_of_long_prompts_are_too():
    rates = [c for c in FOUND if (c.figure, c.kind, c.point.split) == ("rate", "tpu-long", "held-out")]
    assert len(rates) > 50
    assert share_within(rates, 1.5) >= 0.95


def test_held_out_decoding_is_within_a_fifth():
    """Tokens of requests that no prompt interrupts: short prompts, or a single user."""
    steps = [
        c
        for c in FOUND
        if c.figure == "tpot" and c.point.split == "held-out" and (c.point.users == 1 or c.point.input_tokens <= 1_100)
    ]
    assert len(steps) > 40
    assert share_within(steps, 1.2) >= 0.95


def test_only_the_fit_sweep_repeats_its_prompts_unsaid():
    shares = dict(zip(POINTS, cached_shares(POINTS), strict=True))
    assert all(share == 0 for point, share in shares.items() if point.split == "held-out")
    again = {p.users: share for p, share in shares.items() if (p.deployment, p.input_tokens) == ("sweep-e2b", 4_096)}
    assert again[2] == 1.0
    assert again[16] == pytest.approx(0.5)
    too_long_for_the_cache = next(
        share for p, share in shares.items() if (p.deployment, p.input_tokens, p.users) == ("sweep-12b", 4_096, 64)
    )
    assert too_long_for_the_cache == 0


def test_a_burst_is_told_from_a_closed_loop():
    bursts = [point for point in POINTS if is_one_wave(point)]
    assert {c.figure for c in FOUND if c.point in bursts} == {"rate"}
    assert bursts


def test_a_spread_that_is_off_by_a_little_is_noticed():
    key = ("rate", "tpu-short")
    wrong = {**BANDS, key: Spread(low=BANDS[key].low - 0.01, high=BANDS[key].high, points=BANDS[key].points)}
    assert {k: s for k, s in wrong.items() if s.points} != learned(POINTS)
