"""The Cloud Run service: private, with its probes and mounts, and requests that stay where they are."""

import dataclasses
from types import SimpleNamespace

import pulumi

from components.cloud_run_gpu_service import (
    CloudRunGpuService,
    CloudRunGpuServiceArgs,
    Collector,
    GcsMount,
    GpuMachine,
    KeptTraffic,
    MemoryVolume,
    ReadinessProbe,
    RequestScaling,
    ServerContainer,
)
from contracts.labels import Ownership
from planning.settings.cloud_run import ProbeSettings

PROBE = ProbeSettings(initial_delay_s=240, period_s=60, failure_threshold=30, timeout_s=50)
CONTAINER = ServerContainer(
    image="us-east4-docker.pkg.dev/my-project/gemma-x/vllm/vllm-openai@sha256:" + "a" * 64,
    command=("vllm", "serve"),
    arguments=("/mnt/models/m", "--port=8000"),
    port=8000,
    startup_probe=PROBE,
    environment={"VLLM_LOGGING_LEVEL": "INFO"},
    secrets={"HF_TOKEN": SimpleNamespace(secret_id="s", version="3")},
    mount=GcsMount(bucket="b", path="/mnt/models", options=("uid=0", "gid=0")),
    memory_volumes=(MemoryVolume(name="file-cache", path="/mnt/cache", size_limit="8Gi"),),
)
MACHINE = GpuMachine(gpu="nvidia-l4", cpu=8, memory_mib=32 * 1024, zonal_redundancy=False)
ARGS = CloudRunGpuServiceArgs(
    project="my-project",
    location="us-east4",
    service_name="gemma-x",
    service_account="a@my-project.iam.gserviceaccount.com",
    ownership=Ownership(project="gemma-serving", stack="x"),
    labels={"team": "ml"},
    container=CONTAINER,
    machine=MACHINE,
    scaling=RequestScaling(min_instances=1, max_instances=2, concurrency=16, request_timeout_s=3600),
    invokers=("user:a@example.com",),
    deletion_protection=False,
)


def service(declare, **changes):
    recorder, uri = declare(lambda: CloudRunGpuService("vllm", dataclasses.replace(ARGS, **changes)).uri)
    return recorder, recorder.one("cloudrunv2/service:Service").inputs, uri


def test_a_service_is_private_and_callable_by_its_invokers_alone(declare):
    recorder, inputs, uri = service(declare)
    assert uri == "https://gemma-x.a.run.app"
    assert [grant.inputs["member"] for grant in recorder.all("serviceIamMember")] == ["user:a@example.com"]
    assert inputs["deletionProtection"] is False
    assert inputs["labels"]["gemma-serving-stack"] == "x"


def test_the_container_has_its_gpu_its_probe_and_its_mounts(declare):
    _, inputs, _ = service(declare)
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


def serving(revision, **labels):
    """The service as Google answers it: the latest revision has all requests."""
    return {
        "labels": labels,
        "traffic": [{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}],
        "trafficStatuses": [
            {"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100, "revision": revision},
        ],
    }


def test_without_a_roll_out_the_latest_revision_gets_all_requests_and_no_label_is_added(declare):
    _, inputs, _ = service(declare)
    assert inputs["traffics"] == [{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}]
    assert "gemma-serving-template" not in inputs["labels"]
    assert inputs["ingress"] == "INGRESS_TRAFFIC_ALL"


def test_outputs_of_other_resources_are_part_of_the_fingerprint(declare):
    def fingerprint(digest):
        image = pulumi.Output.from_input(f"us-east4-docker.pkg.dev/p/r/i@sha256:{digest * 64}")
        container = dataclasses.replace(CONTAINER, image=image)
        _, inputs, _ = service(declare, container=container, kept_traffic=KeptTraffic(service=None))
        return inputs["labels"]["gemma-serving-template"]

    assert fingerprint("a") == fingerprint("a")
    assert fingerprint("a") != fingerprint("b")


def test_readiness_probe_and_ingress_are_as_given(declare):
    probe = ReadinessProbe(period_s=10, failure_threshold=3, timeout_s=5)
    container = dataclasses.replace(CONTAINER, readiness_probe=probe)
    _, inputs, _ = service(declare, container=container, ingress="internal")
    assert inputs["ingress"] == "INGRESS_TRAFFIC_INTERNAL_ONLY"
    assert inputs["template"]["containers"][0]["readinessProbe"] == {
        "periodSeconds": 10,
        "failureThreshold": 3,
        "timeoutSeconds": 5,
        "httpGet": {"path": "/health", "port": 8000},
    }


def test_a_collector_takes_its_share_and_starts_after_the_server(declare):
    key = {"VLLM_API_KEY": SimpleNamespace(secret_id="key", version="1")}
    collector = Collector(image="collector@sha256:" + "0" * 64, config="{}", secrets=key)
    _, inputs, _ = service(declare, collector=collector)
    server, beside = inputs["template"]["containers"]
    assert (server["name"], beside["dependsOns"]) == ("vllm", ["vllm"])
    assert server["resources"]["limits"] == {"cpu": "6", "memory": "24576Mi", "nvidia.com/gpu": "1"}
    assert beside["resources"]["limits"] == {"cpu": "2", "memory": "8192Mi"}
    assert beside["resources"]["cpuIdle"] is False
    assert beside["args"] == ["--config=env:COLLECTOR_CONFIG"]
    assert [each["name"] for each in beside["envs"]] == ["COLLECTOR_CONFIG", "VLLM_API_KEY"]
    assert "ports" not in beside, "Cloud Run sends requests to the container with a port"
