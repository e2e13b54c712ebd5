"""An `up` names the limits that no known guard enforces. Only an account that Google returned, and that is enabled, is a known guard."""

import pytest

from gemma_serving.cloud import guard
from gemma_serving.cloud.google_calls import GoogleCallError
from gemma_serving.cloud.guard import limits_line
from gemma_serving.contracts.labels import NO_LIMITS, StackLimits
from localcloud.world.scenario import Fault, OperationDurations, Scenario
from tests.cloud.populated import PROJECT, open_world

LIMITS = StackLimits(max_age_s=3600, max_usd=50)
METHOD = "iam.projects.serviceAccounts.get"


@pytest.fixture
def world():
    with open_world(Scenario(operations=OperationDurations(instant=True))) as world:
        yield world


def test_the_line_ends_with_the_guards_account_and_returns_when_it_is_disabled(world):
    assert limits_line(LIMITS, PROJECT) == (
        f"Limits: no guard is known, so maxAge and maxUsd are not enforced: project {PROJECT} has no account ci-guard "
        "(docs/costs.md, Schedule the guard)."
    )
    email = world.account("ci-guard", "made by hand")
    assert limits_line(LIMITS, PROJECT) == ""
    world.call("POST", "iam", f"v1/projects/{PROJECT}/serviceAccounts/{email}:disable", {})
    line = limits_line(StackLimits(idle_after_s=600), PROJECT)
    assert line.startswith("Limits: no guard is known, so tpu.idleAfter is not enforced: the account ci-guard of ")
    assert "is disabled" in line


@pytest.mark.parametrize("status", [403, 429, 503])
def test_a_guard_that_google_does_not_answer_about_is_not_known(world, status):
    world.account("ci-guard", "made by hand")
    world.cloud.cloud.scenario = Scenario(faults=[Fault(method=METHOD, status=status, count=9)])
    line = limits_line(LIMITS, PROJECT)
    assert line.startswith(
        "Limits: cannot check whether a guard exists, without which maxAge and maxUsd are not enforced: "
    )


def test_an_api_that_is_off_is_named_in_a_few_words(world):
    world.call("POST", "serviceusage", f"v1/projects/{PROJECT}/services/iam.googleapis.com:disable", {})
    assert limits_line(LIMITS, PROJECT).endswith(f"are not enforced: API iam is off in project {PROJECT}.")


def test_a_stack_without_limits_makes_no_call(monkeypatch):
    def refused(*_, **__):
        raise GoogleCallError(0, "a call")

    monkeypatch.setattr(guard, "call_now", refused)
    assert limits_line(NO_LIMITS, PROJECT) == ""
    assert limits_line(LIMITS, PROJECT).endswith(": a call.")


def test_capacity_that_google_does_not_end_is_named_with_what_ends_its_spending(world):
    spot = limits_line(LIMITS, PROJECT, ["spot"])
    assert spot.startswith(
        "Limits: spot does not expire, and no guard is known, so maxAge and maxUsd are not enforced: "
    )
    world.account("ci-guard", "made by hand")
    assert limits_line(LIMITS, PROJECT, ["spot", "standard"]) == (
        "Limits: spot and standard do not expire; maxAge and maxUsd are enforced by the guard, which was set up: "
        f"project {PROJECT} has its account ci-guard."
    )
    assert limits_line(NO_LIMITS, PROJECT, ["standard"]) == (
        "Limits: standard does not expire, and the stack has no limit that ends the spending. "
        "Set maxUsd or maxAge, and schedule the guard (docs/costs.md, Schedule the guard)."
    )
    world.cloud.cloud.scenario = Scenario(faults=[Fault(method=METHOD, status=503, count=9)])
    unknown = limits_line(LIMITS, PROJECT, ["spot"])
    assert unknown.startswith("Limits: spot does not expire, and cannot check whether a guard exists, without which ")
