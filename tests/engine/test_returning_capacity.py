"""Capacity that Google takes away and gives back in an order of forms, with the real CLI: spot behind a dry flex-start, a preemption, the end of a run.

packages/gcp-tpu/gcp_tpu_provider/tests/test_forms.py has each order and each change of it. tests/kills has random kills.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys

import pytest

from tests.engine.conftest import CAPACITY, FAILURE, LIMIT_S, until
from tests.engine.terminal import come_back, typed
from tests.engine.test_recovery_words import provider_process

STACK = "tpu-v6e1-e4b"
HOME, AWAY = "us-east5-a", "europe-west4-a"
ZONES = (HOME, AWAY)
ORDER = ["flex-start:24h", "spot:48h", "standard"]
"""The waits are longer than any test: only stock decides when a form is given up, so the machine's speed decides nothing."""
CEILING_USD = 2.8
"""Above standard in the first zone (2.70) and below standard in the second (2.97). Spot costs 1.40 and 1.78, flex-start 1.35."""
FORMS = ("FLEX_START", "SPOT", "STANDARD")
FAILS = {"chips": 0, "dry": "fails"}
WAITS = {"chips": 0}
PLENTY = {"chips": 8}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


def stock(workspace, home, away=None):
    """Set what both zones have of each form. A form that is not named fails at once. One slice fits the quota of a zone."""
    zones = {
        zone: {
            "accelerator_types": ["v6e-1"],
            "flex_start": True,
            "stock": {form: given.get(form, FAILS) for form in FORMS},
            "quota_chips": 1,
            "preemptible_quota_chips": 1,
        }
        for zone, given in ((HOME, home), (AWAY, home if away is None else away))
    }
    workspace.change_scenario({"tpu": {"zones": zones}})


def documents(workspace, kind):
    """Return the documents of a kind, by name, as the cloud stores them."""
    database = sqlite3.connect(f"file:{workspace.folder / 'cloud' / 'resources.sqlite'}?mode=ro", uri=True)
    try:
        rows = database.execute("SELECT name, document FROM resources WHERE kind = ?", (kind,)).fetchall()
    finally:
        database.close()
    return {name: json.loads(document) for name, document in rows}


def the_node(workspace):
    (node,) = documents(workspace, "tpu.nodes").values()
    return node


def queued(workspace):
    return documents(workspace, "tpu.queuedResources")


def changes(workspace):
    """Return the accepted creations and deletions of queued resources since `forget`, in order: verb, zone, and the form of a creation."""
    rows = workspace.admin("requests")["requests"]
    found = [row for row in rows if "/queuedResources" in row["path"] and row["method"] in {"POST", "DELETE"}]
    return [(row["method"], row["path"].split("/locations/")[1].split("/")[0]) for row in found if row["status"] < 300]


def forget(workspace):
    workspace.call("DELETE", "admin/requests")


def requested(workspace):
    """Return zone and form of every queued resource that was ever requested, in order."""
    operations = documents(workspace, "tpu.operations").values()
    made = [one["response"] for one in operations if "provisioningModel" in (one.get("response") or {})]
    return [
        (one["name"].split("/")[3], one["provisioningModel"]) for one in sorted(made, key=lambda one: one["createTime"])
    ]


def form_in_use(workspace):
    return workspace.outputs(STACK)["provisioning"]


@pytest.fixture(scope="module")
def before(workspace):
    """Every resource before the stack."""
    return sorted(workspace.made(""))


@pytest.fixture(scope="module")
def deployed(workspace, before):
    """A stack whose flex-start is dry in all zones, and what its `up` printed."""
    workspace.pulumi("stack", "init", STACK)
    settings = {"zones": list(ZONES), "provisioning": ORDER, "maxUsdPerHour": CEILING_USD}
    workspace.configure(STACK, **{f"tpu.{key}": value for key, value in settings.items()})
    stock(workspace, {"SPOT": PLENTY})
    return workspace.script("up", "--stack", STACK, "--yes")


def test_a_dry_flex_start_in_all_zones_ends_in_spot_with_the_price_of_spot(workspace, deployed):
    assert requested(workspace) == [(HOME, "FLEX_START"), (AWAY, "FLEX_START"), (HOME, "SPOT")]
    assert form_in_use(workspace) == "spot"
    assert "Costs $1.40/h until Google reclaims it or you delete it." in deployed.out
    workspace.assert_no_changes(STACK, "--refresh")
    status = workspace.script("status", "--stack", STACK, "--json").json
    assert status["stacks"][0]["cloud"]["usd_per_hour"] == pytest.approx(1.4033, abs=1e-4)
    assert "$1.40/h" in workspace.script("teardown", "--stack", STACK, "--dry-run", expect=1).out


def test_a_reorder_is_an_update_in_place_that_never_touches_the_node(workspace, deployed):
    node, requests = the_node(workspace), requested(workspace)
    workspace.configure(STACK, **{"tpu.provisioning": ["standard", *ORDER[:2]]})
    preview = workspace.pulumi("preview", "--json", "--stack", STACK).json
    (step,) = [step for step in preview["steps"] if step["op"] != "same"]
    assert (step["op"], {path.partition("[")[0] for path in step["detailedDiff"]}) == ("update", {"forms"})
    workspace.up(STACK)
    after = the_node(workspace)
    assert {**after, "updateTime": 0} == {**node, "updateTime": 0}
    assert (requested(workspace), form_in_use(workspace)) == (requests, "spot")
    workspace.configure(STACK, **{"tpu.provisioning": ORDER})


def test_after_a_preemption_status_says_so_and_the_dead_request_keeps_the_quota(workspace, deployed):
    node = the_node(workspace)
    workspace.post("admin/preempt", {"node": node["name"]})
    (dead,) = queued(workspace)
    until(lambda: queued(workspace)[dead]["_machine"]["state"] == "SUSPENDED", "the end of the request")
    said = " ".join(workspace.script("status", "--stack", STACK, expect=None).out.split())
    assert "Nothing serves. Google preempted the TPU VM (spot)." in said, said
    assert f"next gemma up {STACK}" in said
    for command in (("connect", "chat", "Hi."), ("smoke",), ("bench",)):
        refused = workspace.script(*command, "--stack", STACK, expect=2).err
        assert "Google preempted the TPU VM (spot). To serve again, run " in refused, refused
    assert "Google preempted the TPU VM (spot)." in workspace.script("logs", "--stack", STACK).err
    # Another request in the zone, as the provider would send it without the deletion.
    path = dead.rpartition("/queuedResources/")[0]
    body = {key: value for key, value in queued(workspace)[dead].items() if key in {"tpu", "spot", "provisioningModel"}}
    body["tpu"]["nodeSpec"][0]["nodeId"] = "second"
    workspace.call("POST", f"tpu/v2alpha1/{path}/queuedResources", body, queuedResourceId="second")
    second = f"{path}/queuedResources/second"
    until(lambda: queued(workspace)[second]["_machine"]["state"] == "FAILED", "the refusal of a second request")
    assert "Quota limit" in json.dumps(queued(workspace)[second]["_machine"]["error"])
    workspace.call("DELETE", f"tpu/v2alpha1/{second}")
    until(lambda: second not in queued(workspace), "the end of the second request")


def test_the_next_up_deletes_the_dead_request_first_and_goes_through_the_order_again(workspace, deployed):
    (dead,) = queued(workspace)
    stock(workspace, {"SPOT": PLENTY}, {"FLEX_START": PLENTY})
    forget(workspace)
    before = len(requested(workspace))
    said = workspace.script("up", "--stack", STACK, "--yes").out
    assert "Google preempted the TPU VM (spot)." in said
    assert "Resources: 1 to replace, " in said
    assert changes(workspace) == [("DELETE", HOME), ("POST", HOME), ("DELETE", HOME), ("POST", AWAY)]
    assert requested(workspace)[before:] == [(HOME, "FLEX_START"), (AWAY, "FLEX_START")]
    assert form_in_use(workspace) == "flex-start"
    assert re.search(r"Costs \$1\.35/h until .*, when Google deletes the VM\.", said), said
    (found,) = queued(workspace)
    assert (dead.split("/")[3], found.split("/")[3]) == (HOME, AWAY)


def test_after_the_end_of_a_run_an_interrupted_and_a_killed_wait_for_spot_lose_nothing_and_request_once(
    workspace, deployed
):
    workspace.advance(4 * 3600)
    (ended,) = queued(workspace)
    until(lambda: queued(workspace)[ended]["_machine"]["state"] == "SUSPENDED", "the end of the run")
    stock(workspace, {"SPOT": WAITS})
    workspace.wait_for_capacity(STACK)
    forget(workspace)
    before = len(requested(workspace))
    with typed(workspace, sys.executable, "-m", "scripts.gemma", "up", STACK, "--yes") as shown:
        shown.until(lambda it: f"{HOME} WAITING (spot, zone 1 of 2)" in it.text, "the wait for spot")
        assert shown.interrupt() == 130, shown.text
    assert changes(workspace)[0] == ("DELETE", AWAY), "the request of the run that ended"
    assert requested(workspace)[before:] == [(HOME, "FLEX_START"), (AWAY, "FLEX_START"), (HOME, "SPOT")]
    ((name, waiting),) = queued(workspace).items()
    (kept,) = workspace.resources(STACK, CAPACITY)
    assert kept["outputs"]["name"] == name
    forget(workspace)
    up = workspace.begin(sys.executable, "-m", "scripts.up", "--stack", STACK, "--yes", output=subprocess.PIPE)
    text = ""
    for line in up.stdout:
        text += line
        if f"{HOME} WAITING (spot, zone 1 of 2)" in line:
            os.kill(provider_process(workspace), signal.SIGKILL)
            break
    text += up.communicate(timeout=LIMIT_S)[0]
    assert up.returncode == 1, text
    assert "Traceback" not in text
    stock(workspace, {"SPOT": PLENTY})
    said = workspace.run(sys.executable, "-m", "scripts.up", "--stack", STACK, "--yes").out
    assert "Costs $1.40/h until Google reclaims it or you delete it." in said
    assert changes(workspace) == [], "each `up` waits for the same request"
    ((again, granted),) = queued(workspace).items()
    assert (again, granted["createTime"]) == (name, waiting["createTime"])
    assert (form_in_use(workspace), len(documents(workspace, "tpu.nodes"))) == ("spot", 1)
    workspace.assert_no_changes(STACK, "--refresh")


def test_what_costs_more_than_the_ceiling_is_never_requested(workspace, deployed):
    workspace.post("admin/preempt", {"node": the_node(workspace)["name"]})
    stock(workspace, {})
    before = len(requested(workspace))
    failed = workspace.script("up", "--stack", STACK, "--yes", expect=FAILURE)
    assert "No zone granted v6e-1 (flex-start, then spot, then standard)." in failed.text
    assert requested(workspace)[before:] == [
        *[(zone, form) for form in FORMS[:2] for zone in ZONES],
        (HOME, "STANDARD"),
    ]
    assert (AWAY, "STANDARD") not in requested(workspace)
    assert queued(workspace) == {}


def test_after_a_lost_state_up_keeps_the_form_in_use(workspace, deployed):
    stock(workspace, {"SPOT": PLENTY})
    workspace.up(STACK)
    node = the_node(workspace)
    workspace.state_file(STACK).unlink()
    workspace.state_file(STACK).with_suffix(".json.bak").unlink(missing_ok=True)
    come_back(workspace, STACK)
    (kept,) = workspace.resources(STACK, CAPACITY)
    assert kept["outputs"]["provisioningModelInUse"] == "spot"
    workspace.up(STACK)
    assert the_node(workspace)["createTime"] == node["createTime"]
    assert form_in_use(workspace) == "spot"


def test_teardown_leaves_nothing(workspace, before, deployed):
    workspace.teardown(STACK)
    assert sorted(workspace.made("")) == before
