"""`gemma up` in a terminal of 80 columns: from nothing, a changed flag, and Ctrl-C while it waits for capacity."""

import json
import re
import sys

import pytest

from tests.engine.terminal import Terminal

STACK = "tpu-v6e1"
BUCKET = "l4-qat"
FAILED = "tpu-v6e4-e4b"
OTHER = "tpu-v6e1-e4b"
CAPACITY = "gcp-tpu:index:QueuedResource"
COLUMNS = 80

pytestmark = pytest.mark.engine


def typed(workspace, stack, *words):
    """Type `gemma up STACK` into a terminal."""
    return Terminal(
        [sys.executable, "-m", "scripts.gemma", "up", stack, *words],
        columns=COLUMNS,
        lines=120,
        folder=workspace.folder / "project",
        environment=workspace.environment,
    )


def words_of(shown):
    return " ".join(shown.text.split())


def test_up_from_nothing_says_what_it_costs_and_what_to_type_next(workspace):
    shown = typed(workspace, STACK, "--yes")
    try:
        assert shown.end() == 0, shown.text
        found = words_of(shown)
        for part in (
            "google/gemma-4-E2B-it fits on v6e-1.",
            "Starts in 12 min.",
            "Costs $1.35/h",
            f"{STACK}: requests TPU capacity. New capacity can take hours or never arrive. The first start takes 12 min (planned).",
            "to create, 0 unchanged.",
            "Cost: $1.35/h maximum.",
            f'gemma chat {STACK} "Say hello."',
        ):
            assert part in found, f"{part}\n{shown.text}"
        assert re.search(rf"{STACK} deployed in \d+ s\. Zone: us-east5-a", found), shown.text
        assert "Traceback" not in found
        assert not re.search(r"\d+m\d\ds  ", shown.text), "the two lines of the wait are still on the screen"
    finally:
        shown.close()
    told = workspace.script("gemma").out
    assert re.search(rf"Deployed:\n  {STACK}  \$1\.35/h, \d.* left\nNext: gemma status\n", told), told


def test_weights_that_are_not_staged_stop_it_before_the_first_resource(workspace):
    workspace.pulumi("stack", "init", BUCKET)
    refused = workspace.run(sys.executable, "-m", "scripts.gemma", "up", BUCKET, "--yes", expect=2)
    assert re.match(r"up: No weights are staged in gs://.*stage_model", refused.err.splitlines()[-1])
    assert not json.loads(workspace.state(BUCKET))["checkpoint"]["latest"].get("resources")
    workspace.stage(BUCKET)
    undeployed = workspace.script("smoke", "--stack", BUCKET, expect=2)
    assert f"Stack {BUCKET} is not deployed. Run `gemma up {BUCKET}`." in undeployed.err
    shown = typed(workspace, BUCKET)
    try:
        shown.until(lambda it: "Type yes:" in it.text, "the question")
        assert shown.type("no\n") == 2, shown.text
    finally:
        shown.close()
    workspace.script("teardown", "--stack", BUCKET, "--yes", "--include-retained")


def test_a_changed_flag_is_stated_with_the_restart_and_its_minutes_before_the_question(workspace):
    path = workspace.folder / "project" / f"Pulumi.{STACK}.yaml"
    path.write_text(path.read_text().replace("maxModelLen: 16384", "maxModelLen: 8192"))
    shown = typed(workspace, STACK)
    try:
        shown.until(lambda it: "Type yes:" in it.text, "the question")
        found = words_of(shown)
        for part in (
            "--max-model-len: 16384 -> 8192, restarts in place, about 5 min",
            f"{STACK}: restarts the server on its node and keeps the capacity.",
            "Requests fail while the server restarts: about 5 min (planned), up to 12 min if it compiles again.",
            "Cost: $1.35/h maximum, as now.",
        ):
            assert part in found, f"{part}\n{shown.text}"
        assert shown.type("no\n") == 2, shown.text
        assert "up: Nothing was changed." in shown.text
    finally:
        shown.close()


@pytest.mark.long
def test_after_a_500_recover_stands_first_and_repairs_the_stack(workspace):
    workspace.pulumi("stack", "init", FAILED)
    lost = {"method": "iam.projects.serviceAccounts.create", "status": 500, "when": "after", "count": 30}
    workspace.change_scenario({"faults": [lost]})
    up = (sys.executable, "-m", "scripts.gemma", "up", FAILED, "--yes")
    for faults in ([lost], []):
        workspace.change_scenario({"faults": faults})
        failed = workspace.run(*up, expect=1)
        assert failed.err.splitlines()[-1].startswith(
            f"up: Run `gemma recover {FAILED}` first, because Google may have"
        )
        assert f"Run `gemma recover {FAILED}`, then `pulumi up --stack {FAILED}`. " in failed.err
    workspace.script("recover", "--stack", FAILED, "--yes")
    workspace.run(*up)
    workspace.script("teardown", "--stack", FAILED, "--yes")


@pytest.mark.long
def test_an_interrupt_while_it_waits_keeps_the_request_in_the_state(workspace):
    workspace.pulumi("stack", "init", OTHER)
    workspace.wait_for_capacity(OTHER)
    none = {"accelerator_types": ["v6e-1"], "flex_start": True, "capacity": {"v6e-1": 0}}
    zones = workspace.admin("scenario")["tpu"]["zones"]
    workspace.change_scenario({"tpu": {"zones": dict.fromkeys(zones, none)}})
    shown = typed(workspace, OTHER, "--yes")
    try:
        shown.until(lambda it: re.search(r"/24h us-east5-a WAITING", it.text), "the wait")
        first = next(line for line in shown.screen.display if "QueuedResource" in line)
        assert re.match(r"\d+:\d\d:\d\d \d+ of \d+: creating ", first), first
        assert shown.interrupt() == 130, shown.text
        told = words_of(shown)
        assert "and cost $1.35/h maximum. Run `gemma up" in told, told
    finally:
        shown.close()
    resources = json.loads(workspace.state(OTHER))["checkpoint"]["latest"]["resources"]
    assert [one["type"] for one in resources if one["type"] == CAPACITY] == [CAPACITY]
    workspace.pulumi("destroy", "--yes", "--skip-preview", "--stack", OTHER)
