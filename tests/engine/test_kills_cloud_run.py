"""Fifteen kills of a Cloud Run stack at random moments: nothing is left, nothing foreign is touched, and `up` goes on."""

import sys

import pytest

from tests.kills.plan import GPU
from tests.kills.series import assert_kills_lose_nothing

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


def test_fifteen_kills_lose_nothing(tmp_path):
    assert_kills_lose_nothing(tmp_path, GPU, 15)
