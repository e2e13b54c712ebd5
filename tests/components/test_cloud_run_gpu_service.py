"""The Cloud Run service: private, with its probes and mounts, and requests that stay where they are."""

import dataclasses

import pytest

from gemma_serving.components.cloud_run_gpu_service import (
    CloudRunGpuService,
    CloudRunGpuServiceArgs,
    Collector,
    _timeouts,
)
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.stored_secret import (
    ExistingSecret,
    ExistingSecretArgs,
    HuggingFaceToken,
    StoredSecretArgs,
)
from gemma_serving.components.vllm_server import VllmServer
from gemma_serving.contracts.labels import Ownership
from gemma_serving.planning.settings.cloud_run import CloudRunSettings, MountSettings, ProbeSettings

PROBE = ProbeSettings(initial_delay_s=240, period_s=60, failure_threshold=30, timeout_s=50)
RUN = CloudRunSettings(
    region="us-east4",
    gpu="nvidia-l4",
    cpu=8,
    memory_mib=32 * 1024,
    concurrency=16,
    min_instances=1,
    max_instances=2,
    startup_probe=PROBE,
    invokers=("user:a@example.com",),
    mount=MountSettings(mode="fuse-cached", cache_size_mib=8 * 1024),
)
SERVER = VllmServer(
    image="us-east4-docker.pkg.dev/my-project/gemma-x/vllm/vllm-openai@sha256:" + "a" * 64,
    arguments=("/mnt/models/m", "--port=8000"),
    environment={"VLLM_LOGGING_LEVEL": "INFO"},
)
ARGS = CloudRunGpuServiceArgs(
    project="my-project",
    service_name="gemma-x",
    service_account="a@my-project.iam.gserviceaccount.com",
    ownership=Ownership(project="gemma-serving", stack="x"),
    labels={"team": "ml"},
    service=RUN,
    server=SERVER,
)
BUCKET = ModelBucketArgs(project="my-project", name="my-models", location="us-east4", ownership=ARGS.ownership)
TOKEN = StoredSecretArgs(project="my-project", secret_id="s", value="hf", ownership=ARGS.ownership)


def service(declare, *, run=RUN, server=SERVER, with_bucket=False, **changes):
    def declared():
        secrets = {"HF_TOKEN": HuggingFaceToken("token", TOKEN)}
        found = {
            "service": run,
            "server": dataclasses.replace(server, secrets=secrets),
            "bucket": ModelBucket("models", BUCKET) if with_bucket else None,
        }
        return CloudRunGpuService("vllm", dataclasses.replace(ARGS, **found, **changes)).uri

    recorder, uri = declare(declared)
    return recorder, recorder.one("cloudrunv2/service:Service").inputs, uri


def test_a_service_is_private_and_its_latest_revision_gets_all_requests_of_its_invokers(declare):
    recorder, inputs, uri = service(declare)
    assert uri == "https://gemma-x.a.run.app"
    assert [grant.inputs["member"] for grant in recorder.all("serviceIamMember")] == ["user:a@example.com"]
    assert inputs["traffics"] == [{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}]
    assert inputs["ingress"] == "INGRESS_TRAFFIC_ALL"
    assert inputs["deletionProtection"] is False
    assert inputs["labels"]["gemma-serving-stack"] == "x"


def test_the_container_has_its_gpu_its_probe_and_its_mounts(declare):
    _, inputs, _ = service(declare, with_bucket=True)
    template = inputs["template"]
    (container,) = template["containers"]
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "32768Mi", "nvidia.com/gpu": "1"}
    assert container["resources"]["cpuIdle"] is False
    assert container["startupProbe"]["failureThreshold"] == 30
    assert container["startupProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/mnt/cache", "/mnt/models"]
    assert template["gpuZonalRedundancyDisabled"] is True
    assert template["nodeSelector"] == {"accelerator": "nvidia-l4"}
    assert template["scaling"] == {"minInstanceCount": 1, "maxInstanceCount": 2}


@pytest.mark.parametrize("probe", [PROBE, None])
def test_a_creation_and_a_change_may_take_longer_than_the_longest_start(probe):
    """The provider's own limit of 20 minutes would leave a service partly created, or partly changed."""
    whole = _timeouts(probe or ProbeSettings())
    for given in (whole.create, whole.update):
        assert isinstance(given, str)
        assert int(given.removesuffix("s")) > (probe or ProbeSettings()).budget_s


@pytest.mark.parametrize(("given", "used"), [({}, "1"), ({"VLLM_ENABLE_CUDA_COMPATIBILITY": "0"}, "0")])
def test_the_environment_has_what_every_server_needs_and_a_given_variable_wins(declare, given, used):
    _, inputs, _ = service(declare, server=dataclasses.replace(SERVER, environment=given))
    values = {each["name"]: each.get("value") for each in inputs["template"]["containers"][0]["envs"]}
    assert (values["VLLM_ENABLE_CUDA_COMPATIBILITY"], values["VLLM_NO_USAGE_STATS"]) == (used, "1")


def test_the_mount_is_owned_by_the_user_of_the_image(declare):
    _, inputs, _ = service(declare, server=dataclasses.replace(SERVER, uid=2000, gid=3000), with_bucket=True)
    (_, models) = inputs["template"]["volumes"]
    assert (models["gcs"]["bucket"], models["gcs"]["readOnly"]) == ("my-models", True)
    assert models["gcs"]["mountOptions"][:2] == ["uid=2000", "gid=3000"]
    streamer = dataclasses.replace(RUN, mount=MountSettings(mode="streamer"))
    _, inputs, _ = service(declare, run=streamer, with_bucket=True)
    assert "volumes" not in inputs["template"] or inputs["template"]["volumes"] == []


def test_a_public_service_and_the_default_probe(declare):
    run = dataclasses.replace(RUN, public=True, startup_probe=None)
    recorder, inputs, _ = service(declare, run=run)
    assert [grant.inputs["member"] for grant in recorder.all("serviceIamMember")] == ["allUsers"]
    probe = inputs["template"]["containers"][0]["startupProbe"]
    assert (probe["periodSeconds"], probe["failureThreshold"], probe["initialDelaySeconds"]) == (10, 180, 0)


def test_readiness_probe_and_ingress_are_as_given(declare):
    _, inputs, _ = service(declare, run=dataclasses.replace(RUN, readiness_probe=True, ingress="internal"))
    assert inputs["ingress"] == "INGRESS_TRAFFIC_INTERNAL_ONLY"
    assert inputs["template"]["containers"][0]["readinessProbe"] == {
        "periodSeconds": 10,
        "failureThreshold": 3,
        "timeoutSeconds": 5,
        "httpGet": {"path": "/health", "port": 8000},
    }


def test_a_collector_takes_its_share_and_starts_after_the_server(declare):
    def declared():
        key = ExistingSecret("key", ExistingSecretArgs(version_name="projects/p/secrets/key/versions/1"))
        collector = Collector(image="collector@sha256:" + "0" * 64, config="{}", secrets={"VLLM_API_KEY": key})
        return CloudRunGpuService("vllm", dataclasses.replace(ARGS, collector=collector)).uri

    recorder, _ = declare(declared)
    inputs = recorder.one("cloudrunv2/service:Service").inputs
    server, beside = inputs["template"]["containers"]
    assert (server["name"], beside["dependsOns"]) == ("vllm", ["vllm"])
    assert server["resources"]["limits"] == {"cpu": "6", "memory": "24576Mi", "nvidia.com/gpu": "1"}
    assert beside["resources"]["limits"] == {"cpu": "2", "memory": "8192Mi"}
    assert beside["resources"]["cpuIdle"] is False
    assert beside["args"] == ["--config=env:COLLECTOR_CONFIG"]
    assert [each["name"] for each in beside["envs"]] == ["COLLECTOR_CONFIG", "VLLM_API_KEY"]
    assert "ports" not in beside, "Cloud Run sends requests to the container with a port"
