"""What to try when no zone gives capacity: each step is one that the settings file can make."""

import dataclasses
from functools import partial
from pathlib import Path

import pytest

from gemma_serving.planning.machine.hardware import ACCELERATORS, known_places
from gemma_serving.planning.settings.question import NO_TPU, Question
from gemma_serving.stacks.hooks.next_steps import next_steps
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from tests.records import replace

tpu_block = partial(dataclasses.replace, NO_TPU)
ZONES = known_places(ACCELERATORS["v6e-4"])

ROOT = Path(__file__).parents[2]


@pytest.fixture
def question():
    return to_question(from_file(ROOT / "Pulumi.tpu-v6e4.yaml", project="my-project"))


def small(**changes):
    return Question().changed(
        model="google/gemma-4-E2B-it",
        accelerator="v6e-4",
        platform="tpu-vm",
        tpu=tpu_block(zones=("us-east5-a",), **changes),
    )


def step(steps, start):
    return next((one for one in steps if one.startswith(start)), "")


def test_the_zones_that_are_not_tried_are_named_and_no_other(question):
    some = question.changed(tpu=replace(question.tpu, zones=ZONES[:2]))
    named = step(next_steps(some, "x"), "Zones not tried")
    untried = set(ZONES[2:])
    assert untried
    assert {zone for zone in ZONES if zone in named} == untried
    every = question.changed(tpu=replace(question.tpu, zones=ZONES))
    assert not step(next_steps(every, "x"), "Zones not tried")


def test_compute_engine_has_a_quota_of_its_own_and_no_table_of_zones():
    said = next_steps(small(api="compute-engine"), "x")
    assert said[-1].endswith("To see the quota, run `gemma doctor x`.")
    assert not [one for one in said if "gemma capacity" in one]
