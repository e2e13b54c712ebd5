"""The shipped stacks follow the planner's own advice, or accept a finding with the reason beside it, and cost what their files say."""

from pathlib import Path

import pytest

from planning import Deployment, plan
from planning.data.images import IMAGES
from planning.question.fields import changed, value_at
from planning.question.workload import DEFAULT_WORKLOAD
from planning.solve.candidates import checkpoints_of, deployment_of, rented, servings_of
from stacks.loading import from_file
from stacks.planned import to_deployment

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(ROOT.glob("Pulumi.*.yaml"))


def deployed(path):
    return to_deployment(from_file(path, project="my-project"))


def planned(path):
    return plan(deployed(path))


def unaccepted(found):
    return [finding.id for finding in found.findings if finding.severity != "info" and finding.id not in found.accepted]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_stack_comes_with_a_finding_that_it_does_not_accept(path):
    assert unaccepted(planned(path)) == []


def test_no_finding_is_in_every_stack():
    """What is true of every stack is a part of the plan or a sentence of a page: nobody reads a finding that is always there."""
    found = [{finding.id for finding in planned(path).findings} for path in FILES]
    assert set.intersection(*found) == set()


def test_every_stack_says_how_to_receive_its_alerts():
    for path in FILES:
        stack = path.name.removeprefix("Pulumi.").removesuffix(".yaml")
        command = f"pulumi config set --path gemma-serving:alerts.email you@example.com --stack {stack}."
        assert f"  # Only the console and gemma alerts show alerts. To receive them, run {command}" in path.read_text(
            encoding="utf-8"
        )


@pytest.mark.parametrize("image", [image for image, row in IMAGES.items() if row.shipped])
def test_the_way_out_on_one_chip_and_the_search_start_as_the_shipped_stack(image: str):
    ((model, row),) = IMAGES[image].shipped["v6e-1"].items()
    shipped = next(stack for stack in map(deployed, FILES) if (stack.model, stack.accelerator) == (model, "v6e-1"))
    assert {path: value_at(shipped, path) for path in row} == row
    asked = Deployment(model="google/gemma-4-31B-it", accelerator="v6e-1")
    (way,) = (way for found in plan(asked).findings for way in found.remedies if way.changes.get("model") == model)
    moved, own = plan(changed(asked, way.changes)), plan(shipped)
    assert (moved.vllm, moved.startup.total_s) == (own.vllm, own.startup.total_s)
    (served,) = servings_of(checkpoints_of(model))
    ((place,),) = rented((), accelerator="v6e-1")
    searched = plan(deployment_of(served, place, DEFAULT_WORKLOAD, None))
    assert searched.startup.total_s == own.startup.total_s
