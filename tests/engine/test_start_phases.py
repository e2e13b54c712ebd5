"""The phases of a first start on Cloud Run in `gemma up`, with the real CLI, on a cloud whose start takes two minutes."""

import re

import pytest

from tests.engine.conftest import open_workspace

STACK = "l4-qat"
READS = r"entries\.list$"

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    with open_workspace(tmp_path_factory.mktemp("slow"), "--speed", "2") as opened:
        opened.stage(STACK)
        yield opened


def reads(workspace):
    return sum(bool(re.search(READS, call["id"])) for call in workspace.admin("requests")["requests"])


def test_the_phases_of_the_log_are_shown_in_their_order_and_reading_ends_with_the_engine(workspace):
    done = workspace.script("gemma", "up", STACK, "--yes")
    shown = re.findall(r"^(loading|compiling): (.+)$", done.err, re.MULTILINE)
    assert [phase for phase, _ in shown] == sorted((phase for phase, _ in shown), reverse=True)
    shards = [int(line[1]) for _, text in shown if (line := re.search(r"shards: +(\d+)% Completed", text))]
    assert shards, done.err
    assert shards == sorted(shards)
    assert "Compiling a graph" in dict(shown)["compiling"]
    assert f"{STACK} deployed in" in done.out
    measured = re.search(
        r"^Start: (\d+ s, planned \d+: image \d+ \(\d+\), weights \d+ .*, compile [1-9].*)$", done.out, re.MULTILINE
    )
    assert measured is not None, done.out
    assert f"  start    {measured[1]}\n" in workspace.script("status", "--stack", STACK).out
    assert min(workspace.script("smoke", "--stack", STACK, "--json").json["start"]["phases_s"].values()) > 0
    assert reads(workspace) <= 60
    workspace.teardown(STACK)
