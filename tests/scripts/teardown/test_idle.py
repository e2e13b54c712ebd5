"""`tpu.idleAfter`: idle since, busy, unknown. Only the first takes a stack down, and the receipt says why."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.cloud.tpu_machine import idle_since, reported
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.guest_attributes import NOT_IDLE
from gemma_serving.contracts.labels import StackLimits
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from tests.cloud.populated import PROJECT, owner
from tests.contract_keys import keys
from tests.scripts.teardown.test_lasting_limits import used
from tests.scripts.up.test_up_restart import instance
from tests.tools.ci_page import account_grants, custom_roles

NOW = datetime(2026, 11, 22, 20, 0, tzinfo=UTC)
NODE = f"projects/{PROJECT}/locations/us-east5-a/nodes/gemma-x-node"
LIMITS = StackLimits(idle_after_s=2 * 3600)


def at(moment):
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def attributes(now=NOW, **changes):
    given = {"phase": "ready", "serving-hash": "a"}
    given |= {"updated-at": at(now - timedelta(seconds=30)), "idle-since": at(now - timedelta(hours=3))}
    return given | {key.replace("_", "-"): value for key, value in changes.items()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"phase": ""}, "has published no phase"),
        ({"updated_at": at(NOW - timedelta(minutes=11))}, "last reported 11 min ago"),
        ({"updated_at": "yesterday"}, "at an unknown time"),
        ({"updated_at": ""}, "at an unknown time"),
        ({"phase": "failed"}, "is failed"),
        ({"phase": "failed", "idle_since": NOT_IDLE}, "is failed"),  # its last word about requests is old
        ({"phase": "ending"}, "is ending"),
        ({"phase": "a phase of a newer agent"}, "is a phase of a newer agent"),
        ({"idle_since": ""}, "does not report whether requests are running"),
        ({"idle_since": "long"}, "does not report whether requests are running"),
        ({"idle_since": "2026-11-22T10:00:00"}, "does not report whether requests are running"),
    ],
)
def test_what_proves_nothing_is_unknown(changes, words):
    answer = reported(attributes(**changes), NOW)
    assert isinstance(answer, Unknown)
    assert words in answer.why


def test_a_ready_server_is_idle_or_busy_and_one_that_starts_is_busy():
    for updated in (NOW, NOW - timedelta(minutes=10)):
        assert reported(attributes(updated_at=at(updated)), NOW) == Present(NOW - timedelta(hours=3))
    assert reported(attributes(idle_since=NOT_IDLE), NOW) == Absent()
    answers = {phase: type(reported(attributes(phase=phase), NOW)) for phase in keys()["phases"]}
    assert {phase for phase, kind in answers.items() if kind is Present} == {"ready"}
    assert {phase for phase, kind in answers.items() if kind is Unknown} == {"failed", "ending"}


MACHINES = st.lists(st.sampled_from(["busy", "loading", "unknown", 1, 2, 3, 3, 4, 5]), min_size=1, max_size=4)
"""What each machine reports; hours since the last request if it is idle."""


@given(MACHINES)
def test_several_machines_are_idle_only_together_and_since_the_last_of_them(drawn):
    shown = {hours: attributes(idle_since=at(NOW - timedelta(hours=hours))) for hours in range(1, 6)}
    shown |= {"busy": attributes(idle_since=NOT_IDLE), "loading": attributes(phase="loading"), "unknown": {}}
    found = [shown[one] for one in drawn]
    answer = idle_since([SimpleNamespace(name="p/n", published=lambda of=of: of) for of in found], NOW)
    if {"busy", "loading"} & {*drawn}:
        assert answer == Absent()
    elif "unknown" in drawn:
        assert answer == Unknown("n has published no phase")
    else:
        assert answer == Present(NOW - timedelta(hours=min(drawn)))


def publish(desk, **changes):
    """Publish what the agent reports now."""
    published = attributes(datetime.now(UTC), **changes)
    desk.world.cloud.cloud.runtimes.machines.attributes[NODE] = {"gemma-serving": published}


def machine(desk):
    """The stack x with a machine that has the metadata for guest attributes."""
    desk.machine(limits=LIMITS)
    allow_attributes(desk)


def allow_attributes(desk):
    patch = {"metadata": {"enable-guest-attributes": "TRUE"}}
    desk.world.call("PATCH", "tpu", f"v2alpha1/{NODE}?updateMask=metadata", patch)


def guarded(desk):
    code, report, said = desk.run("--over-limit", "--yes", stack=None)
    (stack,) = [item for item in report["stacks"] if item["stack"] == "x"]
    return code, report, said, stack


@pytest.mark.parametrize(
    ("changes", "idle", "verdict"),
    [
        ({"phase": "failed"}, "unknown", "unknown"),
        ({"idle_since": NOT_IDLE}, "busy", "within"),
        ({}, "idle", "exceeded"),
    ],
)
def test_a_stack_is_idle_as_its_machine_says(desk, changes, idle, verdict):
    machine(desk)
    publish(desk, **changes)
    item = used(desk.world)
    assert (item.idle, item.verdict) == (idle, verdict)
    assert ("It is not torn down because of tpu.idleAfter." in " ".join(item.unknown)) is (idle == "unknown")


def test_the_roles_of_the_guards_account_in_the_docs_are_enough_also_for_the_idle_time(desk):
    desk.world.everything("x", limits=LIMITS)
    allow_attributes(desk)
    publish(desk)
    email = f"ci-guard@{PROJECT}.iam.gserviceaccount.com"
    desk.world.account("ci-guard", "made by hand")
    made = {"roleId": "gemmaGuard", "role": {"includedPermissions": custom_roles()["gemmaGuard"]}}
    desk.world.call("POST", "iam", f"v1/projects/{PROJECT}/roles", made)
    for role, expression in account_grants("ci-guard", PROJECT, desk.world.cloud.cloud.project_number(PROJECT)).items():
        desk.world.grant(
            role, f"serviceAccount:{email}", {"title": "limit", "expression": expression} if expression else None
        )
    token = desk.world.cloud.cloud.tokens.issue_access_token(email)
    desk.monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", token)
    code, report, said, stack = guarded(desk)
    assert (code, stack["idle"]) == (ExitCode.DONE, "idle"), said
    assert [one["reasons"] for one in report["receipts"]] == [["tpu.idleAfter 2 h (no request for 3 h)"]]
    assert not [name for name in desk.world.resources() if "gemma-x" in name]


def test_an_instance_of_compute_engine_reports_it_too(desk):
    name = instance(desk.world, labels={**owner("x").labels, **LIMITS.labels})
    published = attributes(desk.world.cloud.cloud.timeline.now())
    desk.world.cloud.cloud.runtimes.machines.attributes[name] = {"gemma-serving": published}
    item = used(desk.world)
    assert (item.idle, item.verdict) == ("idle", "exceeded")
    assert item.exceeded == ["tpu.idleAfter 2 h (no request for 3 h)"]
