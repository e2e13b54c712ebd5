"""What the server is told to load, by where the weights are."""

import pytest

from contracts.labels import Ownership
from planning import plan
from stacks.base import Context
from stacks.loading import from_values
from stacks.naming import Names
from stacks.planned import to_deployment
from tests.stacks.test_loading import values_of


@pytest.mark.parametrize(
    ("weights", "bucket", "load_format", "loaded"),
    [
        ("hub", {}, None, "google/gemma-4-E2B-it"),
        ("hub", {}, "runai_streamer", "google/gemma-4-E2B-it"),
        ("bucket", {}, None, "/mnt/models/gemma-4-E2B-it"),
        ("bucket", {}, "runai_streamer", "gs://my-project-gemma-x-models/gemma-4-E2B-it"),
        ("bucket", {"existing": "theirs", "prefix": "/"}, None, "/mnt/models"),
        ("bucket", {"existing": "theirs", "prefix": ""}, "runai_streamer", "gs://theirs"),
        ("bucket", {"existing": "theirs", "prefix": "e2b"}, "runai_streamer", "gs://theirs/e2b"),
    ],
)
def test_a_tpu_server_loads_from(weights, bucket, load_format, loaded):
    values = values_of("tpu-v6e1")
    values["vllm"] = {**values.get("vllm", {}), **({"loadFormat": load_format} if load_format else {})}
    settings = from_values({**values, "weights": weights, "bucket": bucket}, project="my-project", origin="x")
    context = Context(
        settings=settings,
        plan=plan(to_deployment(settings)),
        names=Names(project="my-project", stack="x"),
        ownership=Ownership(project="gemma-serving", stack="x"),
        secrets={},
    )
    assert context.weights_to_load == loaded
