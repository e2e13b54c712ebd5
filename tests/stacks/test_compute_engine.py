"""What `tpu.api: compute-engine` changes in the plan."""

from pathlib import Path

import pytest

from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.planner import plan
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_deployment

FILE = Path(__file__).parents[2] / "Pulumi.tpu-v6e1.yaml"


def test_the_plan_has_the_minute_of_docker_and_cloud_nat_without_the_hub():
    other, planned = (
        plan(to_deployment(from_file(FILE, project="my-project", changes=changes)))
        for changes in ({}, {"tpu.api": "compute-engine"})
    )
    assert planned.startup.total_s - other.startup.total_s == pytest.approx(constant("DOCKER_INSTALL_S"))
