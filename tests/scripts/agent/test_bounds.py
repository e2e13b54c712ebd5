"""The bound of an `up` by an assistant: the run itself once, none for one instance that requests start, otherwise `maxUsd` and a guard.

Records and accounts are those of a local cloud.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from gemma_serving.cloud.guard import GUARD
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from gemma_serving.contracts.settings_files import settings_file, shipped_files, stack_of_file
from gemma_serving.engine.state import StackState
from gemma_serving.engine.steps import PlannedStep
from gemma_serving.scripts.agent.bounds import PlannedStack, require_bound
from gemma_serving.scripts.stack.frozen import planned_cost
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.hooks.run_recorder import stack_recorder
from localcloud.world.scenario import Fault, OperationDurations, Scenario
from tests.cloud.populated import PROJECT, open_world

ROOT = Path(__file__).parents[3]
TPU, RUN = "tpu-v6e4", "l4-qat"
WARM = {"min_instances": 1}
"""An instance that always runs, which no hours of requests bound."""
TPU_STACKS = [stack_of_file(path.name) for path in shipped_files(ROOT) if path.name.startswith("Pulumi.tpu-")]
MISSING = StackState(stack=TPU, status="missing")
UNLIMITED = (
    f"Stack {TPU} has no maxUsd. The user can set limits in Pulumi.{TPU}.yaml (docs/costs.md), or run `gemma up {TPU}`."
)
GUARDED = "only with maxAge, maxUsd and a scheduled guard. "
NO_GUARD = f"no guard is known, so maxAge and maxUsd are not enforced: project {PROJECT} has no account {GUARD} (docs/costs.md, Schedule the guard)"


@pytest.fixture(scope="module")
def world():
    with open_world() as world:
        yield world


def shipped(stack, block=None, **changes):
    """Return a stack whose settings are those of the file but for these of the stack and of its block for the target."""
    settings = stack_settings(stack, project=PROJECT, folder=settings_file(stack, ROOT).parent)
    if block:
        key = "tpu" if settings.tpu else "cloud_run"
        changes[key] = replace(getattr(settings, key), **block)
    settings = replace(settings, **changes)
    return PlannedStack(name=stack, settings=settings, cost=planned_cost(settings, ROOT))


def step(op, kind=CAPACITY_TYPE):
    return PlannedStep(op=op, type=kind, name="tpu", digest="")


def bound(planned, *steps, state=MISSING, usd_per_hour=1.5):
    """Return what is said after the price per hour."""
    rate, text = require_bound(planned, usd_per_hour, steps, state).split("1.50 per hour", 1)
    assert rate == "$"
    return text.removeprefix(". ")


def refusal(planned, *steps, **now):
    with pytest.raises(CommandRefusedError) as error:
        bound(planned, *steps, **now)
    return str(error.value)


@pytest.mark.parametrize("stack", TPU_STACKS)
def test_the_file_of_each_shipped_tpu_stack_bounds_its_first_run(world, stack):
    usd = "21.60" if stack.startswith("tpu-v6e4") else "5.40"
    assert (
        bound(shipped(stack), step("create"))
        == f"This run costs at most ${usd} for one run of 4 h; then Google deletes the TPU VM."
    )


@pytest.fixture
def begun():
    """A world in which the first run of the stack has begun."""
    with open_world() as world:
        names, owner = Names(project=PROJECT, stack=TPU), Ownership(project="gemma-serving", stack=TPU)
        world.account(names.account_id, owner.description)
        zone = shipped(TPU).settings.tpu.zones[0]
        world.full_name = world.queued(names.base, owner.labels, zone)
        yield world


def test_the_first_run_covers_its_updates_and_no_second_run(begun):
    planned = shipped(TPU)
    same = "This plan starts no new run. The current run costs at most $21.60 for one run of 4 h; then Google deletes the TPU VM."
    assert bound(planned, step("update"), step("create", "other")) == same
    second = "An assistant deploys a second run only with maxAge and maxUsd. This is a second run: "
    for steps in (
        (step("replace"),),
        (step("same"), step("create-replacement")),
        (step("replace", "other"), step("create")),
    ):
        assert refusal(planned, *steps) == f"{second}the plan replaces the current one. {UNLIMITED}"
    assert bound(planned, step("replace", "other"), step("same")) == same
    stack_recorder(planned.settings, TPU).note()
    begun.call("DELETE", "tpu", f"v2alpha1/{begun.full_name}?force=true")
    assert refusal(planned) == f"{second}the first one is over. {UNLIMITED}"
    limited = bound(shipped(TPU, max_usd=50), step("create"))
    assert limited == "Each run costs at most $21.60 for one run of 4 h; then Google deletes the TPU VM. maxUsd is $50."


def test_a_record_or_a_zone_that_cannot_be_read_or_a_lost_record_is_not_a_first_run(begun):
    def denied(method):
        fault = Fault(method=method, status=403, count=99)
        begun.cloud.cloud.scenario = Scenario(operations=OperationDurations(instant=True), faults=[fault])
        return refusal(shipped(TPU))

    text = denied("iam.projects.serviceAccounts.get")
    assert "only with maxAge and maxUsd. Whether this is a second run is unknown, so try again: " in text
    assert "The caller does not have permission" in text
    assert text.endswith(UNLIMITED)
    text = denied("tpu.projects.locations.queuedResources.get")
    assert "try again: Google denied access to a zone of the stack" in text
    begun.call("DELETE", "iam", f"v1/{stack_recorder(shipped(TPU).settings, TPU).account}")
    deployed = StackState(stack=TPU, status="read", resources=[{"type": CAPACITY_TYPE}])
    assert "the service account with the record of its runs does not exist" in refusal(shipped(TPU), state=deployed)


def test_a_run_without_an_age_is_refused(world):
    assert refusal(shipped(TPU, max_age_s=None)) == (
        f"An assistant deploys a run only with maxAge. {UNLIMITED.replace('maxUsd', 'maxAge')}"
    )


@pytest.mark.parametrize(
    ("form", "stack", "block"),
    [
        ("a TPU with tpu.provisioning spot", TPU, {"provisioning": ("spot",)}),
        ("a TPU with tpu.provisioning [flex-start, spot]", TPU, {"provisioning": ("flex-start", "spot")}),
        ("a TPU without tpu.maxRunDuration", TPU, {"max_run_duration_s": None}),
        ("a Cloud Run service", RUN, WARM),
    ],
)
def test_another_form_needs_a_cost_limit_and_a_guard(world, form, stack, block):
    text = refusal(shipped(stack, block))
    assert text.startswith(f"An assistant deploys {form} {GUARDED}Stack {stack} has no maxUsd; {NO_GUARD}. The user ")
    text = refusal(shipped(stack, block, max_usd=50))
    assert text.startswith(f"An assistant deploys {form} {GUARDED}{NO_GUARD}. The user ")
    text = refusal(shipped(stack, block, max_usd=50, max_age_s=None))
    assert text.startswith(f"An assistant deploys {form} {GUARDED}Stack {stack} has no maxAge; {NO_GUARD}. The user ")


def test_a_known_guard_and_a_cost_limit_allow_a_service_and_an_unknown_guard_does_not():
    planned = shipped(RUN, WARM, max_usd=50)
    with open_world() as world:
        world.account(GUARD, "made by accounts.sh")
        assert bound(planned) == (
            f"maxUsd is $50. A scheduled guard enforces it: the account {GUARD} of project {PROJECT} shows that one was set up, not that it runs."
        )
        assert bound(shipped(RUN, max_usd=50)).startswith("maxUsd is $50. ")
        assert f"{GUARDED}Stack {RUN} has no maxUsd. The user" in refusal(shipped(RUN, WARM))
        fault = Fault(method="iam.projects.serviceAccounts.get", status=403, count=9)
        world.cloud.cloud.scenario = Scenario(operations=OperationDurations(instant=True), faults=[fault])
        assert f"{GUARDED}cannot check whether a guard exists, without which maxAge and maxUsd" in refusal(planned)


RUN_STACKS = [stack_of_file(path.name) for path in shipped_files(ROOT) if "Pulumi.tpu-" not in path.name]
NO_MAXIMUM = " while requests come, no maximum. Without requests, only storage costs money."
SERVES = {"type": SERVICE_TYPE, "urn": "urn:pulumi:s::p::t::vllm"}


@pytest.mark.parametrize("stack", RUN_STACKS)
def test_one_instance_that_requests_start_has_no_maximum_and_one_that_always_runs_needs_a_guard(world, stack):
    """Of the shipped stacks only the one of field report 002 keeps an instance; its refusal names what its user adds."""
    planned = shipped(stack)
    if planned.settings.cloud_run.min_instances:
        assert stack == "l4-qat-002"
        assert f"Stack {stack} has no maxUsd; {NO_GUARD}. The user can set limits in Pulumi.{stack}.yaml" in refusal(
            planned
        )
        assert bound(shipped(stack, {"min_instances": 0})) == NO_MAXIMUM
    else:
        for state in (StackState(stack=stack, status="read", resources=[SERVES]), MISSING):
            assert bound(planned, state=state) == NO_MAXIMUM


@pytest.mark.parametrize("block", [{"max_instances": 2}, {"min_instances": 1, "max_instances": 1}])
def test_more_instances_than_one_that_requests_start_need_a_guard(world, block):
    assert NO_GUARD in refusal(shipped(RUN, block))


@pytest.mark.parametrize("stack", [TPU, RUN])
def test_no_limit_replaces_a_price(world, stack):
    said = f"The price of stack {stack} per hour is unknown. The user can set prices in Pulumi.{stack}.yaml to a file with the price"
    assert refusal(shipped(stack, max_usd=50), usd_per_hour=None).startswith(said)
