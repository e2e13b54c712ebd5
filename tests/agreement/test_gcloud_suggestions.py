"""gcloud knows every command that a message of this project suggests."""

import json
from pathlib import Path

import pytest

from localcloud.tests.idle_cloud import Started
from localcloud.tests.server.gcloud_commands import REQUESTS, Gcloud, installed, refused_by_parser, run
from tests.agreement.gcloud_suggestions import suggested

PARSED = json.loads(REQUESTS.read_text())["parsed"]


def test_the_recorded_parser_of_gcloud_knows_every_command_that_messages_suggest():
    assert [argv for argv in suggested() if list(argv) not in PARSED] == []


@pytest.fixture
def gcloud() -> Gcloud:
    found = installed()
    if found is None:
        pytest.skip("gcloud with its alpha track is not installed")
    return found


@pytest.mark.long
def test_the_parser_of_gcloud_knows_every_command_that_messages_suggest(
    gcloud: Gcloud, own_cloud: Started, tmp_path: Path
):
    hints = suggested()
    outcomes = run(gcloud, own_cloud.base_url, tmp_path, hints, token=None)
    assert all("active account" in outcome.said for outcome in outcomes)
    assert [pair for pair in zip(hints, outcomes, strict=True) if refused_by_parser(pair[1])] == []
