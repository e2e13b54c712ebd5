"""Quantities carry their unit, and reading undoes writing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.planning.settings.text import format_memory, parse_memory_mib
from gemma_serving.planning.units import format_duration, parse_duration_s


@given(st.integers(min_value=0, max_value=10**7))
def test_a_duration_is_read_back_as_it_was_written(seconds):
    assert parse_duration_s(format_duration(seconds)) == seconds


@given(st.integers(min_value=1, max_value=10**6))
def test_a_memory_size_is_read_back_as_it_was_written(mib):
    assert parse_memory_mib(format_memory(mib)) == mib


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("4h", 14400), ("1h30m", 5400), ("7d", 604800)]
)
def test_durations_mean_what_people_mean(text, seconds):
    assert parse_duration_s(text) == seconds
