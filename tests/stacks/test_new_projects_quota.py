"""The Cloud Run stacks of this repository on the local cloud's Cloud Run with the quota of a new project: creation and update."""

from pathlib import Path

import pytest
import yaml

from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.stacks.loading import from_file
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import IMAGES, PROJECT, Client
from localcloud.tests.services.test_run_rules import GPU
from localcloud.world.scenario import BUILT_IN, DEFAULT_WORLD, Scenario

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cloud():
    scenario = Scenario.model_validate(
        {
            **Scenario().model_dump(),
            "run": BUILT_IN[DEFAULT_WORLD].run.model_dump(),
            "images": IMAGES.model_dump(),
            "operations": {"instant": True},
        }
    )
    with idle_cloud.start(scenario=scenario) as started:
        yield Client(started.base_url, started.token)


def template(run):
    """Return a template with what the settings say about size and number, and the image that the tests' cloud has."""
    template = {**GPU["template"], "scaling": {"maxInstanceCount": run.max_instances}}
    (container,) = template["containers"]
    limits = {"cpu": str(run.cpu), "memory": f"{run.memory_mib}Mi", "nvidia.com/gpu": "1"}
    return {
        **template,
        "containers": [{**container, "resources": {"limits": limits}}],
        "nodeSelector": {"accelerator": run.gpu},
        "gpuZonalRedundancyDisabled": not run.zonal_redundancy,
    }


def deployed(cloud, stack, run):
    """Create the service and change it. Return what Cloud Run says to each, "" where it accepts it."""
    services = f"/run/v2/projects/{PROJECT}/locations/{run.region}/services"
    said = []
    for verb, path, timeout in (
        ("POST", f"{services}?serviceId={stack}", "60s"),
        ("PATCH", f"{services}/{stack}", "61s"),
    ):
        status, answer = cloud.call(verb, path, {"template": {**template(run), "timeout": timeout}})
        if status == 200:
            answer = cloud.ok("POST", f"/run/v2/{answer['name']}:wait", {"timeout": "20s"})
        said.append(answer.get("error", {}).get("message", ""))
    return said


def settings_of(folder, stack, changes):
    document = yaml.safe_load(settings_file(stack, ROOT).read_text())
    for block, values in changes.items():
        document["config"][f"gemma-serving:{block}"].update(values)
    path = folder / f"Pulumi.{stack}.yaml"
    path.write_text(yaml.safe_dump(document))
    return from_file(path, project=PROJECT).cloud_run


def test_the_rtx_pro_6000_needs_what_the_plan_says_to_request(cloud, tmp_path):
    """No GPU, then too little memory; with 1 GPU, 160 GiB and 40 vCPU it can be created and changed."""
    run = settings_of(tmp_path, "rtx6000-31b", {})
    assert "You do not have quota for using GPUs without zonal redundancy" in deployed(cloud, "a", run)[0]
    request(cloud, run, "NvidiaRtxPro6000GpuAllocNoZonalRedundancyPerProjectRegion", 1000)
    assert "MemAllocPerProjectRegion requested: 85899345920 allowed: 42949672960" in deployed(cloud, "b", run)[0]
    request(cloud, run, "MemAllocPerProjectRegion", 160 << 30)
    request(cloud, run, "CpuAllocPerProjectRegion", 40_000)
    request(cloud, run, "NvidiaRtxPro6000GpuAllocNoZonalRedundancyPerProjectRegion", 2000)
    assert deployed(cloud, "c", run) == ["", ""]


def request(cloud, run, quota, value):
    body = {
        "project": PROJECT,
        "service": "run.googleapis.com",
        "quotaId": quota,
        "dimensions": {"region": run.region},
        "preferredValue": str(value),
        "contactEmail": "me@example.com",
    }
    cloud.ok("POST", "/admin/quota", body)
