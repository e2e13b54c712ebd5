"""Laws about whose things a command changes: never another owner's, and without a terminal only what the state of this backend has."""

import contextlib
import json
import re
import time
from dataclasses import replace

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.alerts import read_alerts
from gemma_serving.cloud.kinds import BUCKET, BY_TYPE, GRANT, INSTANCE, KINDS, NODE, QUEUED
from gemma_serving.cloud.tpu_machine import TpuMachine
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.labels import NO_LIMITS, StackLimits
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.scripts.stage_model import housekeeping
from gemma_serving.scripts.up.lookup import KINDS as ADOPTABLE
from gemma_serving.scripts.up.lookup import LookupSession, lookup
from gemma_serving.stacks.hooks.run_recorder import stack_recorder
from localcloud.tests.services.test_instances import body_of
from tests.cloud.populated import ALL_KINDS, PROJECT, REGION, TUNNEL_ROLE, ZONE, open_world, owner
from tests.laws import examples
from tests.scripts.teardown.conftest import SCENARIO, STACK, Desk

OWNER, OTHERS = owner(STACK), {"project": "gemma-serving-b", "stack": f"{STACK}-2", "managed-by": "gemma-serving-2"}
"""The owner that asks, and the start of the label that differs of the other one: it begins as the owner's."""
OURS, THEIRS = Names(project=PROJECT, stack=STACK), Names(project=PROJECT, stack="other")
"""Names that the settings of the stack give, and other names."""
EVERY = ALL_KINDS | {INSTANCE}
SHORT = StackLimits(max_age_s=60)
READING = re.compile(r":(getIamPolicy|testIamPermissions|getGuestAttributes)$")
NODE_OF = f"projects/{PROJECT}/locations/{ZONE}/nodes/{{}}-node"
settings_of = settings(
    max_examples=examples(test=7, part=30, night=200),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],  # each example runs a cloud, so a smaller one is not worth its search
)


def make(world, names, label="", value="", limits=NO_LIMITS):
    """Make one of each kind with the names of a stack and the marks of the owner, but for one label."""
    changed = {label: value} if label in {"project", "stack"} else {}
    marks, managed_by = replace(OWNER, limits=limits, **changed), value if label == "managed-by" else "gemma-serving"
    world.made_of(marks, names, ZONE, managed_by)
    labels = {**marks.labels, "managed-by": managed_by}
    path = f"compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"
    world.call("POST", "compute", path, body_of(f"{names.base}-tpu", labels=labels))
    described = marks.description.replace("managed-by=gemma-serving", f"managed-by={managed_by}")
    always = {"title": "x", "expression": 'request.time < timestamp("2100-01-01T00:00:00Z")', "description": described}
    world.grant(TUNNEL_ROLE, f"user:{names.base}@example.com", always)


def existing(world, names):
    """Return the full names of the resources with the names of a stack, and its grants."""
    grants = {grant for grant in world.policy() if names.base in grant[1]}
    return {name for name in world.resources() if names.base in name}, grants


def written(world, names):
    """Return the calls that wrote to what has the names of a stack, and forget all calls."""
    headers, url = {"Authorization": f"Bearer {world.cloud.token}"}, f"{world.cloud.base_url}/admin/requests"
    log = requests.get(url, headers=headers, timeout=60).json()["requests"]
    requests.delete(url, headers=headers, timeout=60)
    writes = [entry for entry in log if entry["method"] not in {"GET", "HEAD"} and not READING.search(entry["path"])]
    return [f"{entry['method']} {entry['path']}" for entry in writes if names.base in entry["path"]]


def adopted(world):
    """Yield the types of which `up` would import a resource with the names that the settings give."""
    base, secret = OURS.base, f"{OURS.base}-hf-token"
    common = {"project": PROJECT, "region": REGION, "location": "us-east4", "zones": [ZONE], "name": base}
    common |= {"displayName": base, "dashboardJson": json.dumps({"displayName": base}), "queuedResourceId": base}
    common |= {"accountId": OURS.account_id, "router": base, "repositoryId": base, "secretId": secret}
    special = {"Bucket": {"name": OURS.bucket}, "Firewall": {"name": f"{base}-iap"}, "Repository": {"location": REGION}}
    common |= {"secret": f"projects/{PROJECT}/secrets/{secret}"}
    search = LookupSession(api=world.api, owner=OWNER)
    for type_ in ADOPTABLE:
        urn = f"urn:pulumi:{STACK}::gemma-serving::{type_}::x"
        found = lookup(search, type_, urn, {**common, **special.get(type_.rpartition(":")[2], {})})
        assert found is not None
        if found.owner == "owned":
            yield type_


def ask_for_changes(world):
    """Ask for a restart, a deletion of staged weights and a record of runs, by the names that the settings give."""
    known = stack_settings(STACK, project=PROJECT)
    machine = TpuMachine(api=world.api, name=NODE_OF.format(OURS.base))
    for ask in (
        lambda: machine.set_metadata("restart", "nonce", OWNER),
        lambda: housekeeping.manage(STACK, known, "m", yes=True, as_json=True),
        lambda: stack_recorder(known, STACK).note(),
    ):
        with contextlib.suppress(ScriptError):
            ask()


@contextlib.contextmanager
def opened_desk(tmp_path_factory, capsys):
    with pytest.MonkeyPatch.context() as patch, open_world(SCENARIO) as world:
        desk = Desk(world, tmp_path_factory.mktemp("desk"), patch, capsys)
        path = desk.folder / f"Pulumi.{STACK}.yaml"
        path.write_text(re.sub(r"(gemma-serving:weights): \w+", r"\1: bucket", path.read_text()))
        desk.sleeps(lambda pause_s: time.sleep(min(pause_s, 0.02)))  # between the attempts of a refused deletion
        yield desk


@settings_of
@given(
    label=st.sampled_from(sorted(OTHERS)),
    end=st.text("abz09", max_size=3),
    theirs_have_our_names=st.booleans(),
    command=st.sampled_from(["name", "all", "over limit"]),
)
def test_nothing_that_one_asks_for_writes_to_what_another_owner_has(
    tmp_path_factory, capsys, *, label, end, theirs_have_our_names, command
):
    with opened_desk(tmp_path_factory, capsys) as desk:
        world, mine, theirs = desk.world, *((THEIRS, OURS) if theirs_have_our_names else (OURS, THEIRS))
        make(world, mine, limits=SHORT)
        value = f"{OTHERS[label]}{end}"
        make(world, theirs, label, value, limits=SHORT if label == "managed-by" else NO_LIMITS)
        world.cloud.cloud.timeline.advance(3600)
        before = existing(world, theirs)
        written(world, theirs)
        if theirs_have_our_names:
            ask_for_changes(world)
            assert [*adopted(world)] == []
        assert read_alerts(world.api, stack=STACK, project=PROJECT).policies == 1
        if command == "over limit" or (command, label) == ("all", "stack"):
            code, receipt, _ = desk.run("--over-limit", "--yes", stack=None)
        else:
            code, receipt, _ = desk.run("--yes", stack=STACK if command == "name" else None)
            assert {one["pulumi_project"] for one in receipt["foreign"]} == ({value} if label == "project" else set())
        assert code == ExitCode.DONE
        assert written(world, theirs) == []
        assert existing(world, theirs) == before
        assert existing(world, mine) == (set(), set())


def stated(item):
    """Return the entry of a state that has a found resource."""
    if item["kind"] == GRANT:
        _, role, member = item["name"].split(" ")
        return {"type": "gcp:projects/iAMMember:IAMMember", "inputs": {"role": role, "member": member}}
    if item["kind"] in {QUEUED, INSTANCE}:
        return {"type": CAPACITY_TYPE, "inputs": {}, "outputs": {"name": item["name"]}}
    type_ = next(type_ for type_, kind in BY_TYPE.items() if kind.kind == item["kind"])
    if item["kind"] == BUCKET:
        name = item["name"].rpartition("/")[2]
        return {"type": type_, "id": name, "inputs": {"name": name}}
    return {"type": type_, "id": item["name"], "inputs": {}}


@settings_of
@given(data=st.data())
def test_without_a_terminal_only_what_the_state_of_this_backend_has_is_deleted(tmp_path_factory, capsys, data):
    """Two folders of `init` with equal labels, and a backend each: what the other one made is named and stays."""
    with opened_desk(tmp_path_factory, capsys) as desk:
        make(desk.world, OURS)
        found = [item for item in desk.run("--dry-run")[1]["leaked"] if item["kind"] != NODE]
        names = data.draw(st.sets(st.sampled_from(sorted(item["name"] for item in found))))
        chosen = [item for item in found if item["name"] in names]
        entries = [{"urn": f"u{number}", "custom": True, **stated(item)} for number, item in enumerate(chosen)]
        if names:
            desk.state({"manifest": {"time": "2026-11-01T00:00:00Z"}, "resources": entries})
        desk.leave()
        written(desk.world, OURS)
        code, receipt, _ = desk.run("--yes")
        account = f"serviceAccounts/{OURS.account_email}"
        of_account = {item["name"] for item in found if item["kind"] == GRANT and OURS.account_email in item["name"]}
        names |= of_account if any(name.endswith(account) for name in names) else set()
        others = {item["name"] for item in found} - names
        # A node goes with its request, a grant with its account, and a network in use stays.
        left = {item["name"] for item in receipt["leaked"] if item["kind"] != NODE}
        assert others <= left
        assert {*receipt["left"]} - {NODE_OF.format(OURS.base)} == others
        assert code == ExitCode.FAILED, "others are left, or the state, which only an engine empties"
        if not names:
            assert written(desk.world, OURS) == []
        for item in receipt["deleted"]:
            assert item["name"] in names or item["kind"] == NODE
        within = desk.run("--over-limit", "--yes", stack=None)
        assert (within[1]["receipts"], others <= {one["name"] for one in desk.run("--dry-run")[1]["leaked"]}) == (
            [],
            True,
        )


def test_the_laws_cover_every_kind():
    assert {kind.kind for kind in KINDS} | {GRANT} == EVERY
