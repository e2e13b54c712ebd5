"""TPU capacity: a constant script, a document that can change, and limits that are checked first."""

import dataclasses
import json

import pulumi
import pytest

from gcp_tpu_provider.capacity import PROVISIONING_S
from gcp_tpu_provider.check import check
from gcp_tpu_provider.properties import inputs as known_inputs
from gcp_tpu_provider.properties import outputs as known_outputs
from gcp_tpu_provider.transport import Pacing
from gemma_serving.components.startup_script import startup_script
from gemma_serving.components.stored_secret import ExistingSecret, ExistingSecretArgs
from gemma_serving.components.tpu_queued_resource import (
    _OUTPUTS,
    TpuQueuedResource,
    TpuQueuedResourceArgs,
    _QueuedResource,
    timeouts,
)
from gemma_serving.components.vllm_server import VllmServer
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.rollout import RolloutLimits, parse_rollout
from gemma_serving.contracts.serving_document import BucketWeights, image_in
from gemma_serving.planning.settings.tpu import TpuSettings

IMAGE = "us-docker.pkg.dev/p/r/vllm/vllm-tpu@sha256:" + "a" * 64
SERVER = VllmServer(image=IMAGE, arguments=("google/gemma-4-E2B-it", "--port=8000"))
TPU = TpuSettings(accelerator_type="v6e-4", zones=("us-east5-a", "us-east5-b"), max_run_duration_s=14400)
ARGS = TpuQueuedResourceArgs(
    project="my-project",
    queued_resource_id="gemma-x",
    tpu=TPU,
    server=SERVER,
    image_repositories={"us": "us-docker.pkg.dev/p/r"},
    network="projects/my-project/global/networks/gemma-x",
    subnetwork="gemma-x",
    service_account="a@my-project.iam.gserviceaccount.com",
    ownership=Ownership(project="gemma-serving", stack="x"),
    labels={"team": "ml"},
    tags=("gemma-x",),
)
_OF_TPU = {field.name for field in dataclasses.fields(TpuSettings)}


def declared(declare, **changes):
    tpu = dataclasses.replace(TPU, **{name: value for name, value in changes.items() if name in _OF_TPU})
    others = {name: value for name, value in changes.items() if name not in _OF_TPU}
    args = dataclasses.replace(ARGS, **({"tpu": tpu} | others))
    recorder, node = declare(lambda: TpuQueuedResource("capacity", args).node_name)
    return recorder.one("gcp-tpu:index:QueuedResource").inputs, node


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"provisioning": ("flex-start", "spot"), "max_usd_per_hour": 100.0, "wait_total_s": 7200},
        {"provisioning": ("reservation",), "reservation": "r", "max_run_duration_s": None, "boot_disk_size_gb": 200},
        {"api": "compute-engine", "zones": ("us-east5-b",), "max_run_duration_s": 7200},
        {"wait_for": "active", "allow_replace_active": True},
    ],
)
def test_the_provider_takes_every_input(declare, changes):
    given, _ = declared(declare, **changes)
    inputs = json.loads(json.dumps(given), parse_float=lambda number: int(float(number)))  # mocks have floats alone
    assert check("urn:pulumi:x::gemma-serving::gcp-tpu:index:QueuedResource::capacity", inputs).mistakes == ()


def test_every_output_is_one_of_the_provider():
    names = {"node_name": "nodeName", "node_ips": "nodeIps", "provisioning": "provisioningModelInUse"}
    assert {names.get(name, name) for name in _QueuedResource.__annotations__} <= {*known_inputs(), *known_outputs()}
    assert {after: before for before, after in _OUTPUTS.items()} == names


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
    other, _ = declared(declare, server=dataclasses.replace(SERVER, arguments=("m", "--max-model-len=8192")))
    assert {key for key in inputs if inputs[key] != other[key]} == {"metadata"}
    assert inputs["metadata"]["startup-script"] == other["metadata"]["startup-script"]


def test_the_engine_waits_for_every_zone_to_use_all_its_time():
    zone_s = TPU.wait_per_zone_s + PROVISIONING_S + Pacing().delete_s
    whole_s = 2 * zone_s + 2 * TPU.ready_timeout_s  # the second one for the way back to the last good document
    assert timeouts(TPU).create == f"{whole_s:.0f}s"
    short = dataclasses.replace(TPU, wait_total_s=600)
    ends_s = 2 * (PROVISIONING_S + Pacing().delete_s) + 2 * TPU.ready_timeout_s
    assert timeouts(short).create == f"{600 + ends_s:.0f}s"


def test_the_waits_and_the_size_of_the_boot_disk_are_the_settings(declare):
    names = ("waitFor", "waitTotalS", "bootDiskSizeGb")
    inputs, _ = declared(declare)
    assert [inputs.get(name) for name in names] == ["ready", None, None]
    # A request that nobody waits for any more would become ACTIVE unseen, and cost money until its run duration ends.
    assert inputs["validUntilDurationS"] == TPU.wait_per_zone_s + PROVISIONING_S
    inputs, _ = declared(declare, wait_for="accepted", wait_total_s=600, boot_disk_size_gb=300)
    assert [inputs.get(name) for name in names] == ["accepted", 600, 300]


def test_v5e_is_asked_for_by_the_name_that_the_api_knows(declare):
    """The planner and the settings say v5e, the API says v5litepod."""
    inputs, _ = declared(declare, accelerator_type="v5e-4")
    assert (inputs["acceleratorType"], inputs["runtimeVersion"]) == ("v5litepod-4", "v2-alpha-tpuv5-lite")


def test_the_document_is_deterministic_and_holds_no_secret(declare):
    def document(**changes):
        def program():
            secret = ExistingSecret("token", ExistingSecretArgs(version_name="projects/1/secrets/s/versions/3"))
            server = dataclasses.replace(SERVER, secrets={"HF_TOKEN": secret}, **changes)
            return TpuQueuedResource("capacity", dataclasses.replace(ARGS, server=server)).node_name

        recorder, _ = declare(program)
        return recorder.one("gcp-tpu:index:QueuedResource").inputs["metadata"]["gemma-serving-document"]

    variables = {"A": "1", "B": "2"}
    text = document(environment=variables)
    assert text == document(environment=dict(reversed(variables.items())))
    found = json.loads(text)
    assert found["secretEnv"] == {"HF_TOKEN": "projects/1/secrets/s/versions/3"}
    assert found["weights"] == {"mode": "hub"}
    assert (found["command"], found["port"], found["shmSizeGib"]) == (["vllm", "serve"], 8000, 16)
    assert found["env"].items() >= {**variables, "VLLM_XLA_CACHE_PATH": "/dev/shm/vllm_cache"}.items()


def test_weights_of_a_bucket_are_copied_before_the_server_starts(declare):
    copied = pulumi.Output.from_input(BucketWeights("gs://b/m", "/mnt/models/m"))
    inputs, _ = declared(declare, weights=copied, compile_cache="off")
    document = json.loads(inputs["metadata"]["gemma-serving-document"])
    assert document["weights"] == {"mode": "bucket", "uri": "gs://b/m", "path": "/mnt/models/m"}
    assert "VLLM_XLA_CACHE_PATH" not in document["env"]


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
