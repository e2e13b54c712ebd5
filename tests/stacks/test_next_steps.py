"""What to try when no zone gives capacity: each step is one that the settings file can make, and the plan allows."""

from dataclasses import replace
from pathlib import Path

import pytest

from planning import plan
from planning.machine.hardware import FLEX_START_V6E_ZONES
from planning.question.types import Deployment, TpuOptions
from planning.question.vllm_args import VllmOptions
from stacks.hooks.next_steps import next_steps
from stacks.loading import from_file
from stacks.planned import to_deployment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def deployment():
    return to_deployment(from_file(ROOT / "Pulumi.tpu-v6e4.yaml", project="my-project"))


def small(**changes):
    return Deployment(
        model="google/gemma-4-E2B-it",
        accelerator="v6e-4",
        platform="tpu-vm",
        tpu=TpuOptions(zones=("us-east5-a",), **changes),
    )


def step(steps, start):
    return next((one for one in steps if one.startswith(start)), "")


def test_the_zones_that_are_not_tried_are_named_and_no_other(deployment):
    some = replace(deployment, tpu=replace(deployment.tpu, zones=FLEX_START_V6E_ZONES[:2]))
    named = step(next_steps(some, "x"), "Zones not tried")
    untried = set(FLEX_START_V6E_ZONES[2:])
    assert untried
    assert {zone for zone in FLEX_START_V6E_ZONES if zone in named} == untried
    every = replace(deployment, tpu=replace(deployment.tpu, zones=FLEX_START_V6E_ZONES))
    assert not step(next_steps(every, "x"), "Zones not tried")


def test_the_subnet_of_an_existing_network_keeps_to_its_region():
    named = step(next_steps(small(private_google_access=True), "x"), "Zones not tried")
    assert "us-east5-b" in named
    assert "europe" not in named


@pytest.mark.parametrize(
    ("present", "other"), [("flex-start", "spot"), ("spot", "flex-start"), ("standard", "flex-start")]
)
def test_another_pool_has_its_price_beside_that_of_the_present_one(present, other):
    said = step(next_steps(small(provisioning_model=present), "x"), "Another provisioning model")
    assert f"gemma-serving:tpu.provisioning: {other}," in said
    assert said.count("$") == 2


def test_a_smaller_slice_is_named_only_if_the_plan_fits_there_without_a_warning_of_its_edge():
    said = step(next_steps(small(), "x"), "A smaller slice")
    assert said.endswith("gemma-serving:tpu.acceleratorType: v6e-1.")
    assert plan(replace(small(), accelerator="v6e-1")).fits
    bound = replace(small(), vllm=VllmOptions(tensor_parallel_size=4))
    assert not step(next_steps(bound, "x"), "A smaller slice")
    large = replace(small(), model="google/gemma-4-31B-it")
    assert not step(next_steps(large, "x"), "A smaller slice")


def test_the_last_step_looks_at_every_zone(deployment):
    assert next_steps(deployment, "mine")[-1].endswith("`gemma capacity mine`.")


def test_compute_engine_has_a_quota_of_its_own_and_no_table_of_zones():
    said = next_steps(small(api="compute-engine"), "x")
    assert "PREEMPTIBLE-TPU-V6E-per-project-region --service=compute.googleapis.com" in said[-1]
    assert not [one for one in said if "gemma capacity" in one]
