"""A first `up` of a Cloud Run stack while IAM takes longer than `up` waits: the same `up` again helps. `test_missing_apis` has a wait that is enough."""

import re

import pytest

from tests.engine.conftest import FAILURE

STACK = "l4-qat"
WAITS = re.compile(r"Waiting (\d+) s \(simulated\) for the new grants of the service's account to take effect")

pytestmark = [pytest.mark.engine, pytest.mark.long]


def up(workspace, expect=0):
    return workspace.up(STACK, expect=expect)


def test_a_grant_that_takes_longer_ends_with_a_sentence_and_the_same_up_again_works(workspace):
    workspace.pulumi("stack", "init", STACK)
    workspace.stage(STACK)
    workspace.change_scenario({"iam": {"lag_s": 5000}})
    failed = up(workspace, expect=FAILURE)
    assert f"had not taken effect yet. Run `gemma up {STACK}` again." in failed.text
    workspace.advance(5000)
    again = up(workspace)
    assert not WAITS.search(again.text)
    assert workspace.served_length(STACK) > 0
    workspace.assert_no_changes(STACK, "--refresh")
    workspace.teardown(STACK)
