"""Bands hold on points that set nothing."""

import functools

import pytest

from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.bands import BANDS, Figure, Kind, band
from tests.planning.corpus.sweeps import ComparedPoint, all_points, comparisons

POINTS = all_points()
compared = functools.cache(lambda: comparisons(POINTS))


def share_within(found: list[ComparedPoint], factor: float) -> float:
    return sum(1 / factor <= one.ratio <= factor for one in found) / len(found)


def of_tpus(split: str, figure: Figure) -> list[ComparedPoint]:
    """Return the points without an unexplained part; `explained_ratio` of the others is for the bands."""
    own = (one for one in compared() if (one.figure, one.point.split) == (figure, split))
    return [one for one in own if one.kind != "gpu" and not one.unexplained]


@pytest.mark.parametrize("key", BANDS)
def test_a_band_contains_the_planned_value(key: tuple[Figure, Kind]):
    figure, kind = key
    server = resolve(
        Question().changed(model="google/gemma-4-E2B-it", accelerator="v6e-1" if kind == "tpu" else "H100")
    )
    planned = band(figure, 2.0, server, Workload())
    assert 0 < planned.low <= planned.typical == 2.0 <= planned.high


@pytest.mark.parametrize(("split", "count"), [("fit", 200), ("band", 58), ("held-out", 38)])
def test_rates_of_any_length_and_number_of_users_are_within_a_factor_of_one_and_a_half(split: str, count: int):
    rates = of_tpus(split, "rate")
    assert len(rates) == count
    assert share_within(rates, 1.5) >= 0.95


def test_rates_of_long_prompts_that_set_no_constant_are_too():
    others = (c for c in compared() if (c.figure, c.kind) == ("rate", "tpu") and c.point.split != "fit")
    rates = [one for one in others if one.point.input_tokens >= 4_096]
    assert len(rates) > 50
    assert share_within(rates, 1.5) >= 0.95


def test_decoding_that_set_no_constant_is_within_a_fifth():
    """Tokens of requests that no prompt interrupts: short prompts, or a single user."""
    steps = [
        c
        for split in ("band", "held-out")
        for c in of_tpus(split, "tpot")
        if c.point.users == 1 or c.point.input_tokens <= 1_100
    ]
    assert len(steps) > 40
    assert share_within(steps, 1.2) >= 0.94


def test_the_first_token_of_one_request_with_a_short_prompt_is_within_a_third():
    """Medians of HTTP servers: one step, and the time of the server."""
    firsts = [
        one
        for one in compared()
        if (one.figure, one.point.users) == ("ttft", 1)
        and one.point.input_tokens <= 256
        and (one.point.requests or 0) >= 8
        and not one.point.benchmark.is_mean
    ]
    assert len(firsts) > 25
    assert share_within(firsts, 4 / 3) == 1


def test_unseen_gpus_are_within_one_and_a_half_times_the_rate_and_twice_the_time_to_the_first_token():
    unseen = [one for one in compared() if one.point.is_unseen and one.kind == "gpu"]
    rates, firsts = ([one for one in unseen if one.figure == figure] for figure in ("rate", "ttft"))
    assert len(rates) > 60
    assert len(firsts) > 40
    assert share_within(rates, 1.5) >= 0.85
    assert share_within(firsts, 2) >= 0.80


def test_bands_hold_nine_of_ten_points_that_set_nothing():
    proofs = [one for one in compared() if one.point.split == "held-out"]
    assert sum(one.is_in_band for one in proofs) / len(proofs) >= 0.9
    assert {one.kind for one in proofs if one.point.is_unseen} == {"gpu"}
