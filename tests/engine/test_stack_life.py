"""The life of one stack that the nightly comparison drives, with the real engine and the stand-in of the plugin."""

import json

import pytest

from authors import nightly, sent

pytestmark = [pytest.mark.engine, pytest.mark.long]
STACK = "l4-12b-qat"


@pytest.mark.timeout(1200)
def test_the_life_of_a_stack_leaves_a_log_of_what_was_sent(tmp_path):
    requests, log = tmp_path / "requests.json", tmp_path / "log"
    assert nightly._live(STACK, "standin", requests, log) == 0, log.read_text()[-3000:]
    entries = json.loads(requests.read_text())
    methods = {entry["id"] for entry in sent.changes(entries)}
    assert "run.projects.locations.services.patch" in methods, "the change in place"
    assert "run.projects.locations.services.delete" in methods
    changed = json.loads(requests.read_text())
    service = next(each for each in changed if each["id"] == "run.projects.locations.services.patch")
    service["body"]["template"]["containers"][0]["args"].append("--seed=1")
    (difference,) = sent.compare(changed, entries)[1]
    assert (difference.first, difference.second) == ("--seed=1", "(absent)")
