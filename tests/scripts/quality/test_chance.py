"""Intervals and p-values agree with published values."""

import pytest

from scripts.quality.chance import RightShare, corrected, paired_p


@pytest.mark.parametrize(
    ("right", "judged", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (29, 29, 0.8830, 1.0), (1, 29, 0.0061, 0.1718)],
)  # fmt: skip
def test_wilson_intervals_are_those_of_newcombe(right, judged, low, high):
    """R. G. Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998), table I, method 3."""
    assert RightShare(right=right, judged=judged).interval == pytest.approx((low, high), abs=6e-5)


def test_nothing_judged_has_no_share():
    assert (RightShare(right=0, judged=0).value, RightShare(right=0, judged=0).interval) == (None, (0.0, 1.0))


@pytest.mark.parametrize(
    ("lost", "won", "p"), [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 0.0625), (6, 0, 0.03125), (10, 1, 0.01171875), (4, 4, 1.0)]
)
def test_mcnemar_is_the_exact_binomial_test(lost, won, p):
    assert paired_p(lost, won) == paired_p(won, lost) == pytest.approx(p)


def test_several_comparisons_are_corrected_as_holm_does():
    assert corrected([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert corrected([0.5]) == [0.5]
    assert corrected([]) == []
