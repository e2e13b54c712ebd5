"""An image of one's own on top of the pinned one: built, pushed and used by its digest, with the real CLI."""

import pytest

from gemma_serving.contracts.staged_weights import STAGING_VARIABLE
from gemma_serving.planning.data.images import IMAGES

PINNED = IMAGES["vllm-openai"]
STACK = "l4-qat"
TARGETS = (
    "**:Provider::gcp",
    "**:Repository::image",
    "**:Image::image",
)

pytestmark = [pytest.mark.engine, pytest.mark.long]


def image(workspace):
    (found,) = workspace.resources(STACK, "docker:index/image:Image")
    return found


def up_without_server(workspace):
    """Deploy the targets, which need no weights, as `stage_model` does."""
    workspace.up(STACK, *(f"--target={target}" for target in TARGETS), environment={STAGING_VARIABLE: "1"})


@pytest.fixture(scope="module")
def built(workspace):
    project = workspace.folder / "project"
    (project / "image").mkdir()
    (project / "image" / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN pip install a-plugin==1.0\n")
    pinned = {"repository": PINNED.repository, "digest": PINNED.digest}
    workspace.configure(STACK, image={**pinned, "buildContext": "./image"})
    workspace.pulumi("stack", "init", STACK)
    up_without_server(workspace)
    return project / "image"


def test_the_built_image_starts_from_the_pinned_one_and_lies_in_the_stacks_own_repository(workspace, built):
    found = image(workspace)
    assert found["inputs"]["build"]["args"]["BASE_IMAGE"] == f"vllm/vllm-openai@{PINNED.digest}"
    digest = found["outputs"]["repoDigest"]
    assert digest.startswith(f"us-east4-docker.pkg.dev/local-project/gemma-{STACK}/vllm/vllm-openai@sha256:")


def test_a_changed_file_is_a_new_image_and_an_unchanged_one_is_none(workspace, built):
    targets = [f"--target={target}" for target in TARGETS]
    workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK, *targets)
    before = image(workspace)["outputs"]["repoDigest"]
    with (built / "Dockerfile").open("a") as file:
        file.write("RUN pip install another-plugin==1.0\n")
    up_without_server(workspace)
    assert image(workspace)["outputs"]["repoDigest"] != before
    workspace.script("teardown", "--stack", STACK, "--yes")
