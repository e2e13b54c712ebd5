"""What the server is told to load, by where the weights are."""

import pytest

from contracts.labels import Ownership
from contracts.naming import Names
from planning import plan
from planning.cost.subject import examine
from stacks.base import Context
from stacks.loading import from_values
from stacks.planned import to_deployment
from tests.stacks.test_loading import values_of

HASH = "0123456789abcdef" * 4
OWN, ENDING = f"sha256:{HASH}", "-0123456789abcdef"


@pytest.mark.parametrize(
    ("weights", "bucket", "load_format", "loaded"),
    [
        ("hub", {}, None, "google/gemma-4-E2B-it"),
        ("hub", {}, "runai_streamer", "google/gemma-4-E2B-it"),
        ("bucket", {}, None, "/mnt/models/gemma-4-E2B-it"),
        ("bucket", {}, "runai_streamer", "gs://my-project-gemma-x-models/gemma-4-E2B-it"),
        ("bucket", {"manifest": HASH}, None, "/mnt/models/gemma-4-E2B-it"),
        ("bucket", {"manifest": OWN}, None, "/mnt/models/gemma-4-E2B-it"),  # a machine's own copy
        ("bucket", {"manifest": HASH}, "runai_streamer", "gs://my-project-gemma-x-models/gemma-4-E2B-it"),
        ("bucket", {"manifest": OWN}, "runai_streamer", f"gs://my-project-gemma-x-models/gemma-4-E2B-it{ENDING}"),
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
        subject=examine(to_deployment(settings)),
        plan=plan(to_deployment(settings)),
        names=Names(project="my-project", stack="x"),
        ownership=Ownership(project="gemma-serving", stack="x"),
        secrets={},
    )
    assert context.weights_to_load == loaded


@pytest.mark.parametrize(
    ("mode", "manifest", "loaded"),
    [
        ("fuse", HASH, "/mnt/models/NAME"),  # staged by an earlier version: its folder has no hash, and serves on
        ("fuse", OWN, f"/mnt/models/NAME{ENDING}"),
        ("streamer", OWN, f"gs://my-project-gemma-x-models/NAME{ENDING}"),
        ("memory", OWN, "/mnt/weights/NAME"),
    ],
)
def test_a_service_loads_from_the_folder_of_its_manifest(mode, manifest, loaded):
    """A folder of a revision never changes; a copy in memory is a container's own."""
    values = values_of("l4-qat")
    values["cloudRun"] = {**values["cloudRun"], "mount": {"mode": mode}}
    if mode == "streamer":
        values["vllm"] = {**values.get("vllm", {}), "loadFormat": "runai_streamer"}
    settings = from_values({**values, "bucket": {"manifest": manifest}}, project="my-project", origin="x")
    context = Context(
        settings=settings,
        subject=examine(to_deployment(settings)),
        plan=plan(to_deployment(settings)),
        names=Names(project="my-project", stack="x"),
        ownership=Ownership(project="gemma-serving", stack="x"),
        secrets={},
    )
    name = settings.model.rpartition("/")[2]
    assert (context.weights_to_load, settings.bucket.manifest_hash) == (loaded.replace("NAME", name), HASH)
    assert context.weights_uri.endswith(f"{name}{ENDING if manifest == OWN else ''}")
