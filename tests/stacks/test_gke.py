"""One server in three forms: the plan of a stack, its deployment on its own target, and its objects for GKE."""

import json

import pytest

from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.gke.objects import objects
from gemma_serving.gke.server_inputs import GkeOptions
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.settings.vllm_args import vllm_arguments
from gemma_serving.stacks.gke import gke_server
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from tests.stacks.conftest import ROOT

FILES = {path.name.split(".")[1]: path for path in shipped_files(ROOT)}
OF_A_POD = {"LD_LIBRARY_PATH"}
"""Variables that only a Pod has: the place of a GPU's driver."""


def deployed_server(recorder):
    """Return image, words and environment of the Cloud Run service or of the TPU VM."""
    services = recorder.all("v2/service:Service")
    if services:
        container = services[0].inputs["template"]["containers"][0]
        environment = {one["name"]: one["value"] for one in container["envs"]}
        return container["image"], [*container["commands"], *container["args"]], environment
    (machine,) = recorder.all(":QueuedResource")
    document = json.loads(machine.inputs["metadata"][DOCUMENT_METADATA_KEY])
    return document["image"], [*document["command"], *document["args"]], document["env"]


@pytest.mark.parametrize("stack", FILES)
def test_plan_deployment_and_objects_have_the_same_flags_image_and_environment(declared, stack):
    settings = from_file(FILES[stack], project="my-project")
    # A Pod keeps no graphs, so the service's program that restores them is left out of the comparison.
    recorder = declared(stack, **({"cloudRun__compileCache": "off"} if settings.cloud_run else {}))
    image, words, environment = deployed_server(recorder)
    subject = examine(to_question(settings))
    plan = plan_of(subject)
    options = GkeOptions(image=f"here/server@{image.partition('@')[2]}" if settings.image.build_context else "")
    found = objects(gke_server(settings, subject, plan, "x", options), options)
    (deployment,) = [one["spec"] for one in found if one["kind"] == "Deployment"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert container["image"].partition("@")[2] == image.partition("@")[2]
    values = {one["name"]: one["value"] for one in container["env"]}
    assert {name: value for name, value in values.items() if name not in OF_A_POD} == environment
    assert dict(plan.environment).items() <= values.items()
    on_gke = [*container["command"], *container["args"]]
    drain = on_gke.pop()
    assert drain.startswith("--shutdown-timeout=")
    # A TPU VM's server listens on its loopback address, at the end of a tunnel.
    assert on_gke == [word.replace("--host=127.0.0.1", "--host=0.0.0.0") for word in words]
    planned = vllm_arguments(plan.vllm, model_or_path="")[1:]
    assert set(planned) <= set(on_gke)
