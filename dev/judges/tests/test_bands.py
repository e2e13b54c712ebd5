"""Bands are learned from points that set no constant, by leaving each publisher out."""

import statistics

from dev.judges.accuracy.bands import held_when_left_out, learn_bands, ratios, widening
from gemma_serving.planning.speed.bands import BANDS
from tests.planning.corpus.measured import load
from tests.planning.corpus.sweeps import all_points, comparisons
from tests.records import replace

POINTS = all_points()


def test_the_table_is_what_the_corpus_gives():
    """After a change of the formulas or of the corpus: python -m dev.judges.accuracy.bands prints the table."""
    assert {key: spread for key, spread in BANDS.items() if spread.points} == learn_bands(POINTS)


def test_a_point_sets_a_constant_or_a_band_or_is_a_proof():
    """The splits are one column, so a point has one; an unseen source sets nothing, and half of the sources set nothing but constants of theirs."""
    assert {point.split for point in POINTS if point.is_unseen} == {"held-out"}
    for changed in ("fit", "held-out"):
        others = [replace(point, output_tok_per_s=1.0) if point.split == changed else point for point in POINTS]
        assert learn_bands(others) == learn_bands(POINTS)


def test_bands_without_a_publisher_hold_nine_of_ten_of_its_points():
    found = [publishers for key, publishers in ratios(comparisons(POINTS)).items() if BANDS[key].publishers > 1]
    assert len(found) == sum(spread.publishers > 1 for spread in BANDS.values()) > 1
    inside = [is_held for publishers in found for is_held in held_when_left_out(publishers, widening(publishers))]
    assert sum(inside) / len(inside) >= 0.9


def test_a_class_with_one_publisher_is_widened_like_a_class_with_several():
    found = ratios(comparisons(POINTS))
    factors = {key: widening(found[key]) for key, spread in BANDS.items() if spread.publishers > 1}
    single = [key for key, spread in BANDS.items() if spread.publishers == 1]
    for key in single:
        factor = factors.get((key[0], "gpu"), max(factors.values()))
        percentiles = statistics.quantiles(found[key][0], n=20, method="inclusive")
        assert factor > 1.1
        assert BANDS[key].low <= percentiles[0] / factor
        assert BANDS[key].high >= percentiles[-1] * factor
    assert single


def test_folders_of_one_repository_are_one_publisher():
    assert {load().sources[point.source].publisher for point in POINTS if "v5e" in point.deployment} == {"xbill9"}
