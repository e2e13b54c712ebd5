"""gcloud works against the local cloud: the list of commands with a real gcloud if one is installed, and its recorded requests."""

import json
from pathlib import Path

import pytest

from localcloud.tests.idle_cloud import Started
from localcloud.tests.server.gcloud_commands import (
    REQUESTS,
    Gcloud,
    commands,
    installed,
    prepared,
    replay,
    run,
)

RECORDED = json.loads(REQUESTS.read_text())


def test_the_recorded_requests_of_gcloud_are_answered_as_recorded(own_cloud: Started):
    assert len(RECORDED["requests"]) > 80
    assert replay(own_cloud.base_url, own_cloud.token, RECORDED["requests"]) == []


@pytest.fixture
def gcloud() -> Gcloud:
    found = installed()
    if found is None:
        pytest.skip("gcloud with its alpha track is not installed")
    return found


@pytest.mark.long
def test_gcloud_does_what_the_list_says(gcloud: Gcloud, own_cloud: Started, tmp_path: Path):
    outcomes = run(gcloud, own_cloud.base_url, tmp_path, prepared(tmp_path), token=own_cloud.token)
    pairs = zip(commands(), outcomes, strict=True)
    assert [(command.argv, outcome) for command, outcome in pairs if not command.describes(outcome)] == []
