"""TPU capacity: a constant script, a document that can change, and limits that are checked first."""

import dataclasses
import json
from datetime import UTC, datetime

import pytest

from components.startup_script import startup_script
from components.tpu_queued_resource import TpuQueuedResource, TpuQueuedResourceArgs, timeouts
from contracts.labels import Ownership
from contracts.rollout import RolloutLimits, parse_rollout
from contracts.serving_document import ServingDocument, image_in
from gcp_tpu_provider.capacity import PROVISIONING_S
from gcp_tpu_provider.desired_state import DesiredState
from gcp_tpu_provider.transport import Pacing
from localcloud.services import tpu_requests
from localcloud.services.tpu_queue import Conditions, Queued, QueuedResourceState, step
from localcloud.world.scenario import TpuDurations

DOCUMENT = ServingDocument(
    image="us-docker.pkg.dev/p/r/vllm/vllm-tpu@sha256:" + "a" * 64,
    command=("vllm", "serve"),
    arguments=("google/gemma-4-E2B-it", "--port=8000"),
    environment={"VLLM_XLA_CACHE_PATH": "/dev/shm/vllm_cache"},
    secret_environment={"HF_TOKEN": "projects/1/secrets/s/versions/3"},
    port=8000,
    shm_size_gib=16,
    weights=None,
)
ARGS = TpuQueuedResourceArgs(
    project="my-project",
    queued_resource_id="gemma-x",
    zones=("us-east5-a", "us-east5-b"),
    accelerator_type="v6e-4",
    provisioning_model="flex-start",
    document=DOCUMENT.text(),
    image_repositories={"us": "us-docker.pkg.dev/p/r"},
    network="projects/my-project/global/networks/gemma-x",
    subnetwork="gemma-x",
    service_account="a@my-project.iam.gserviceaccount.com",
    ownership=Ownership(project="gemma-serving", stack="x"),
    labels={"team": "ml"},
    tags=("gemma-x",),
    wait_per_zone_s=1800,
    ready_timeout_s=3600,
    max_run_duration_s=14400,
)


def declared(declare, **changes):
    recorder, node = declare(lambda: TpuQueuedResource("capacity", dataclasses.replace(ARGS, **changes)).node_name)
    return recorder.one("gcp-tpu:index:QueuedResource").inputs, node


def test_the_machine_gives_a_change_up_before_up_does_so_that_up_sees_what_serves_then(declare):
    inputs, _ = declared(declare, drain_s=30, shutdown_flag=True)
    limits = parse_rollout(inputs["metadata"]["gemma-serving-rollout"])
    assert limits == RolloutLimits(ready_timeout_s=3540, drain_s=30, shutdown_flag=True)
    assert limits.ready_timeout_s < inputs["ready"]["timeoutS"]
    short, _ = declared(declare, ready_timeout_s=40)
    assert parse_rollout(short["metadata"]["gemma-serving-rollout"]).ready_timeout_s == 20
    assert inputs["ready"]["deadlineMetadataKey"] == "gemma-serving-ends-at"


def test_a_machine_is_told_the_repository_of_each_region_beside_the_document(declare):
    repositories = {"us-east5": "us-east5-docker.pkg.dev/p/r", "europe-west4": "europe-west4-docker.pkg.dev/p/r-2"}
    one, _ = declared(declare)
    inputs, _ = declared(declare, image_repositories=repositories)
    assert json.loads(inputs["metadata"].pop("gemma-serving-image-repositories")) == repositories
    assert inputs == one


def test_capacity_and_serving_are_told_apart(declare):
    inputs, node = declared(declare)
    assert node.endswith("/nodes/gemma-x-node")
    assert inputs["metadata"]["startup-script"] == startup_script()
    assert json.loads(inputs["metadata"]["gemma-serving-document"])["args"][0] == "google/gemma-4-E2B-it"
    other, _ = declared(declare, document=dataclasses.replace(DOCUMENT, arguments=("m", "--max-model-len=8192")).text())
    assert {key for key in inputs if inputs[key] != other[key]} == {"metadata"}
    assert inputs["metadata"]["startup-script"] == other["metadata"]["startup-script"]


def test_a_request_that_nobody_waits_for_any_more_ends_on_googles_side(declare):
    """Without `validUntilDuration` it would wait for ever, become ACTIVE unseen, and cost money until its run duration ends."""
    inputs, _ = declared(declare)
    request = DesiredState("urn", {**inputs, "nodeId": "gemma-x-node"}).body("us-east5-a")
    now = datetime(2026, 11, 20, tzinfo=UTC)
    _, until_s = tpu_requests.validity(request["queueingPolicy"], simulated_s=0, now=now)
    assert until_s == ARGS.wait_per_zone_s + PROVISIONING_S
    waiting = Queued(state=QueuedResourceState.WAITING, since_s=0, valid_until_s=until_s)

    def after(seconds):
        conditions = Conditions(
            durations=TpuDurations(), quota_error=None, capacity=False, plenty=False, now_s=seconds, life_s=seconds
        )
        return step(waiting, conditions)[0].state

    assert (after(until_s - 1), after(until_s)) == (QueuedResourceState.WAITING, QueuedResourceState.FAILED)


def test_the_engine_waits_for_every_zone_to_use_all_its_time():
    zone_s = ARGS.wait_per_zone_s + PROVISIONING_S + Pacing().delete_s
    whole_s = 2 * zone_s + 2 * ARGS.ready_timeout_s  # the second one for the way back to the last good document
    assert timeouts(ARGS).create == f"{whole_s:.0f}s"
    short = dataclasses.replace(ARGS, wait_total_s=600)
    ends_s = 2 * (PROVISIONING_S + Pacing().delete_s) + 2 * ARGS.ready_timeout_s
    assert timeouts(short).create == f"{600 + ends_s:.0f}s"


def test_the_waits_and_the_size_of_the_boot_disk_are_the_settings(declare):
    names = ("waitFor", "waitTotalS", "bootDiskSizeGb")
    inputs, _ = declared(declare)
    assert [inputs.get(name) for name in names] == ["ready", None, None]
    inputs, _ = declared(declare, wait_for="accepted", wait_total_s=600, boot_disk_size_gb=300)
    assert [inputs.get(name) for name in names] == ["accepted", 600, 300]


def test_v5e_is_asked_for_by_the_name_that_the_api_knows(declare):
    """The planner and the settings say v5e, the API says v5litepod."""
    inputs, _ = declared(declare, accelerator_type="v5e-4")
    assert (inputs["acceleratorType"], inputs["runtimeVersion"]) == ("v5litepod-4", "v2-alpha-tpuv5-lite")


def test_the_document_is_deterministic_and_holds_no_secret():
    text = DOCUMENT.text()
    assert text == dataclasses.replace(DOCUMENT, environment=dict(reversed(DOCUMENT.environment.items()))).text()
    assert json.loads(text)["secretEnv"] == {"HF_TOKEN": "projects/1/secrets/s/versions/3"}
    assert json.loads(text)["weights"] == {"mode": "hub"}


REPOSITORIES = {"us-east5": "us-east5-docker.pkg.dev/p/r", "europe-west4": "europe-west4-docker.pkg.dev/p/r-2"}


@pytest.mark.parametrize(
    ("region", "image", "near"),
    [
        ("us-east5", "us-east5-docker.pkg.dev/p/r/a/b@sha256:1", "us-east5-docker.pkg.dev/p/r/a/b@sha256:1"),
        ("europe-west4", "us-east5-docker.pkg.dev/p/r/a/b@sha256:1", "europe-west4-docker.pkg.dev/p/r-2/a/b@sha256:1"),
        ("us-central1", "us-east5-docker.pkg.dev/p/r/a/b@sha256:1", "us-east5-docker.pkg.dev/p/r/a/b@sha256:1"),
        ("europe-west4", "us-east5-docker.pkg.dev/p/rest/a@sha256:1", "us-east5-docker.pkg.dev/p/rest/a@sha256:1"),
        ("europe-west4", "docker.io/a/b@sha256:1", "docker.io/a/b@sha256:1"),
    ],
)
def test_an_image_is_taken_from_the_machines_own_region_if_it_lies_there(region, image, near):
    assert image_in(region, image, REPOSITORIES) == near
