"""Kills of a Cloud Run stack, fifteen at random moments, in a file of their own: a part of the long suite takes whole files, and a stack's kills minutes."""

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
