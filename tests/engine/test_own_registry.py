"""An image of Artifact Registry is used as it is: by Cloud Run from a public repository, by a TPU VM from a private one of the project."""

import pytest
import yaml

from gemma_serving.planning.data.images import IMAGES
from tests.engine.conftest import PROJECT

TPU = "tpu-v6e1"
RUN = "arimg"
OWN = f"us-docker.pkg.dev/{PROJECT}/servers/vllm/vllm-tpu"
PUBLIC = "us-docker.pkg.dev/vertex-ai/vertex-vision-model-garden-dockers/pytorch-vllm-serve"
DIGEST = "sha256:c1c9f6fd5c109ba7f0546a59f5b2f15fb87f64c77782e90a27b648b42a8e67c3"
SETTINGS = {
    "target": "cloud-run",
    "model": "google/gemma-4-E2B-it",
    "modelRevision": "3e22461f65e89153144f8adb70e3b8c2cc9845a7",
    "image": {"repository": PUBLIC, "digest": DIGEST, "version": "0.31.0"},
    "vllm": {"maxModelLen": 8192, "gpuMemoryUtilization": 0.9},
    "cloudRun": {
        "region": "us-east4",
        "gpu": "nvidia-l4",
        "cpu": 4,
        "memory": "16Gi",
        "concurrency": 16,
        "maxInstances": 1,
    },
}

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_cloud_run_serves_a_public_image_after_the_registry_has_it(workspace):
    document = {"config": {f"gemma-serving:{key}": value for key, value in SETTINGS.items()}}
    workspace.settings(RUN).write_text(yaml.safe_dump(document))
    refused = workspace.script("gemma", "up", RUN, "--yes", expect=2)
    assert "does not exist in Artifact Registry, or your account has no" in refused.err
    assert f"gemma-{RUN}" not in str(workspace.made("")), "nothing was created"
    workspace.post("admin/images", {"images": [f"{PUBLIC}@{DIGEST}"]})
    workspace.script("gemma", "up", RUN, "--yes")
    assert workspace.resources(RUN, "artifactregistry") == []
    assert workspace.outputs(RUN)["image"] == f"{PUBLIC}@{DIGEST}"
    assert workspace.served_length(RUN) == 8192
    workspace.teardown(RUN)


def test_a_machine_pulls_from_a_private_repository_of_the_project(workspace):
    parent = f"artifactregistry/v1/projects/{PROJECT}/locations/us/repositories"
    workspace.post(f"{parent}?repositoryId=servers", {"format": "DOCKER", "mode": "STANDARD_REPOSITORY"})
    digest = IMAGES["vllm-tpu"].digest
    host, _, name = OWN.partition("/")
    workspace.call("PUT", f"registry/{host}/v2/{name}/manifests/1", {"digest": digest})
    workspace.configure(TPU, image={"repository": OWN, "digest": digest, "version": IMAGES["vllm-tpu"].version})
    workspace.script("gemma", "up", TPU, "--yes")
    (grant,) = workspace.resources(TPU, "artifactregistry")
    assert (grant["inputs"]["repository"], grant["inputs"]["role"]) == ("servers", "roles/artifactregistry.reader")
    assert {f"{OWN}@{digest}"} == {
        pull["image"] for pull in workspace.admin("images")["pulls"] if "/nodes/" in pull["by"]
    }
    workspace.teardown(TPU)
