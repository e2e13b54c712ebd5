"""`gemma up` in a terminal of 80 columns, after a failure of Google's and while it waits. tests/engine/test_new_project.py has the rest."""

import re
import sys

import pytest

from tests.engine.conftest import CAPACITY
from tests.engine.terminal import typed

RUN = "l4-12b-qat"
FAILED = "tpu-v6e4-e4b"
OTHER = "tpu-v6e1-e4b"
ZONES = ["us-east5-a", "us-east5-b"]

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_after_a_500_the_next_up_repairs_the_stack(workspace):
    workspace.pulumi("stack", "init", FAILED)
    lost = {"method": "iam.projects.serviceAccounts.create", "status": 500, "when": "after", "count": 30}
    up = (sys.executable, "-m", "scripts.gemma", "up", FAILED, "--yes")
    workspace.change_scenario({"faults": [lost]})
    failed = workspace.run(*up, expect=1)
    assert f"Run `gemma up {FAILED}`, which imports what has this stack's labels" in failed.err
    workspace.change_scenario({"faults": []})
    assert re.search(r"^Start: \d+ s, planned \d+: image \d+ ", workspace.run(*up).out, re.MULTILINE)
    workspace.teardown(FAILED)


def test_a_service_whose_creation_nobody_answered_is_found_with_its_price_until_a_teardown_has_finished(workspace):
    workspace.pulumi("stack", "init", RUN)
    workspace.stage(RUN)
    workspace.configure(RUN, **{"cloudRun.minInstances": 1})
    lost = {"method": "run.projects.locations.services.create", "status": 500, "when": "after", "count": 1}
    workspace.change_scenario({"faults": [lost]})
    workspace.script("gemma", "up", RUN, "--yes", expect=1)
    (status,) = workspace.script("status", "--stack", RUN, "--json").json["stacks"]
    assert (status["cloud"]["usd_per_hour"], status["next_command"]) == (
        pytest.approx(1.05, abs=0.01),
        f"gemma up {RUN}",
    )
    for command in ("chat", "smoke"):
        refused = workspace.script("gemma", command, RUN, expect=2).err
        assert "not deployed" not in refused
        assert f"Run `gemma up {RUN}`, which imports it." in refused
    workspace.script("up", "--stack", RUN, "--yes")
    kept = {"method": "artifactregistry.projects.locations.repositories.delete", "status": 500, "count": 99}
    workspace.change_scenario({"faults": [kept]})
    workspace.script("teardown", "--stack", RUN, "--yes", expect=1)
    workspace.change_scenario({"faults": []})
    for words in (("status", "--stack", RUN), ("gemma",)):
        assert "A teardown did not finish" in (shown := workspace.script(*words).out)
        assert f"gemma teardown {RUN}" in shown
    workspace.teardown(RUN)


def test_the_wait_is_shown_in_a_second_terminal_too_and_an_interrupt_keeps_the_request_in_the_state(workspace):
    workspace.pulumi("stack", "init", OTHER)
    workspace.wait_for_capacity(OTHER)
    workspace.stock(0)
    watch = (sys.executable, "-m", "scripts.status", "--stack", OTHER, "--watch", "--interval", "1")
    with typed(workspace, sys.executable, "-m", "scripts.gemma", "up", OTHER, "--yes") as shown:
        shown.until(lambda it: re.search(r"/24h us-east5-a WAITING", it.text), "the wait")
        first = shown.line_with("QueuedResource")
        assert re.match(r"\d+:\d\d:\d\d \d+ of \d+: creating ", first), first
        with typed(workspace, *watch, lines=60) as second:
            second.until(lambda it: "us-east5-a: WAITING" in it.unwrapped, "the wait")
            assert "WAITING" in second.line_with(f"{OTHER} ")
            assert second.interrupt() == 130
            assert "Traceback" not in second.text
        assert shown.interrupt() == 130, shown.text
        assert "Costs nothing until its capacity is ACTIVE, then $1.35/h." in " ".join(shown.text.split())
    assert len(workspace.resources(OTHER, CAPACITY)) == 1
    workspace.pulumi("destroy", "--yes", "--skip-preview", "--stack", OTHER)


@pytest.mark.parametrize("in_terminal", [True, False])
def test_after_a_stockout_up_prints_each_zone_and_status_and_logs_name_the_next_command(workspace, in_terminal):
    workspace.configure(OTHER, **{"tpu.zones": ZONES, "tpu.waitPerZone": "3s"})
    workspace.stock(0)
    up = (sys.executable, "-m", "scripts.gemma", "up", OTHER, "--yes")
    if in_terminal:
        with typed(workspace, *up) as shown:
            assert shown.end() == 1
            said = " ".join(shown.text.split())
    else:
        said = " ".join(workspace.run(*up, expect=1).text.split())
    for part in (
        "No zone granted v6e-1 (flex-start). All capacity requests were deleted.",
        *(f"{zone} stock: WAITING_FOR_RESOURCES for 3s: the wait for this zone timed out. Quota" for zone in ZONES),
        "stock: try again later or add zones.",
        "Zones not tried: add ",
        f"To see the offers of each zone, run `gemma capacity {OTHER}`.",
        f"Stack {OTHER} was not deployed completely: see the error above.",
    ):
        assert said.count(part) == 1, (part, said)
    status = workspace.script("status", "--stack", OTHER).out
    assert "incomplete" in status
    for text in (status, workspace.script("logs", "--stack", OTHER, expect=2).err):
        flat = " ".join(text.split())
        assert "UTC: No zone granted v6e-1 (flex-start)." in flat
        assert (
            f"`gemma capacity {OTHER}` shows each zone's capacity. Fix the cause, then run `gemma up {OTHER}`." in flat
        )
    cause = " ".join(status.partition("cause")[2].split())
    assert all(f"{zone} stock: WAITING_FOR_RESOURCES for 3s: " in cause for zone in ZONES)
    assert "Zones not tried: add " in cause
    workspace.pulumi("destroy", "--yes", "--skip-preview", "--stack", OTHER)


def test_a_container_that_may_not_open_the_chips_has_the_setting_in_up_and_in_logs(workspace):
    workspace.stock(None)
    workspace.change_scenario({"tpu": {"devices": "denied"}})
    failed = workspace.script("gemma", "up", OTHER, "--yes", expect=1).err
    logs = workspace.script("logs", "--stack", OTHER).err
    for text in (failed, logs):
        assert "Set gemma-serving:tpu.container: privileged." in text
        assert "vLLM's engine did not start" not in text
    workspace.pulumi("destroy", "--yes", "--skip-preview", "--stack", OTHER)
