"""What loads consist of: lengths, without a server."""

import random
import statistics

import pytest

from loadtest.traffic.lengths import parse_lengths
from loadtest.traffic.makers import SyntheticSource
from loadtest.traffic.prompts import POOL, Calibration, Recipe
from loadtest.traffic.spec import Traffic

CALIBRATION = Calibration(source="tokenize", words=POOL, overhead_tokens=4, tokens_per_word=1.0)


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [
        ("lognormal:mean=1000,std=400", 1000, 400),
        ("uniform:min=100,max=300", 200, 58),
        ("normal:mean=500,std=50", 500, 50),
    ],
)
def test_drawn_lengths_have_the_stated_mean_and_deviation(text, mean, std):
    lengths = parse_lengths(text)
    rng = random.Random(7)  # noqa: S311 - lengths, no secret
    drawn = [lengths.draw(rng) for _ in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.02)
    assert statistics.stdev(drawn) == pytest.approx(std, rel=0.05)
    assert parse_lengths(lengths.text) == lengths


@pytest.mark.parametrize(
    "text", ["lognormal:mean=0.5,std=1", "uniform:min=5,max=2", "zipf:a=2", "uniform:min=5", "normal:mean=x"]
)
def test_wrong_distributions_are_refused_with_the_forms(text):
    with pytest.raises(ValueError, match="uniform:min=100,max=2000"):
        parse_lengths(text)


def test_lengths_of_a_distribution_are_clamped_to_max_model_len():
    made = SyntheticSource(
        recipe=Recipe(words=POOL, count=CALIBRATION.words_for(200), seed=5),
        calibration=CALIBRATION,
        correction=0,
        input_tokens=200,
        output_tokens=8,
        most_tokens=256,
        traffic=Traffic(input_lengths=parse_lengths("lognormal:mean=300,std=300")),
    )
    lengths = [made.lengths_of(index) for index in range(500)]
    assert max(given + output for given, output in lengths) == 256
    assert min(given for given, _ in lengths) >= 1
    assert [made.lengths_of(index) for index in range(5)] == lengths[:5]
