"""Every further stack is planned and lives: up with the real CLI on the local cloud, the server answers, teardown leaves nothing."""

from pathlib import Path

import pytest
import yaml

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.data.images import built_images
from tests.engine.conftest import HF_CANARY, KEY_CANARY, assert_nowhere_in_clear

ROOT = Path(__file__).resolve().parents[2]
DRIVEN_ELSEWHERE = {"tpu-v6e4", "l4-qat"}
FAR = "tpu-v6e1-e4b"
WHOLE_LIFE = {"tpu-v6e1-31b-w4a16", "tpu-v6e1-26b-w4a16", "tpu-v6e4-31b"}
"""Stacks that are also previewed again, changed in place and measured: what they serve stands in no other test."""
REPLICAS = "tpu-v6e4-e4b"
"""Stack that is changed in place to four replicas."""
STACKS = sorted(
    {path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT)} - DRIVEN_ELSEWHERE
)

pytestmark = [pytest.mark.engine, pytest.mark.long]


def settings(stack):
    config = yaml.safe_load(settings_file(stack, ROOT).read_text())["config"]
    return {key.partition(":")[2]: value for key, value in config.items()}


@pytest.fixture
def elsewhere(workspace, stack):
    """The first region of one TPU stack refuses every request, so that its capacity comes from another continent."""
    zones = settings(stack).get("tpu", {}).get("zones", []) if stack == FAR else []
    refusing = {zone: {"flex_start": False} for zone in zones if zone.startswith("us-")}
    workspace.change_scenario({"tpu": {"zones": refusing}})
    yield bool(refusing)
    workspace.change_scenario({"tpu": {"zones": {zone: {"flex_start": True} for zone in refusing}}})


def pulls_from_afar(workspace):
    """Pulls of machines, each with the place of the image and the region, and those from a repository outside the region."""
    pulls = [pull for pull in workspace.admin("images")["pulls"] if "/nodes/" in pull["by"]]
    regions = [
        (pull["location"] or pull["image"].partition("/")[0], pull["by"].split("/")[3].rpartition("-")[0])
        for pull in pulls
    ]
    return regions, [pair for pair in regions if pair[0] not in {"docker.io", pair[1]}]


def assert_built_and_pulled(workspace, stack, image):
    """The image was built on the pinned base, pushed to the stack's repository, and pulled from there by the machine."""
    (built,) = workspace.resources(stack, "docker:index/image:Image")
    assert built["inputs"]["build"]["context"] == image.build_context
    assert built["inputs"]["build"]["args"] == {"BASE_IMAGE": f"{image.repository}@{image.digest}"}
    served = workspace.outputs(stack)["image"]
    assert served == built["outputs"]["repoDigest"]
    assert f"/gemma-{stack}/" in served
    assert served in {pull["image"] for pull in workspace.admin("images")["pulls"] if "/nodes/" in pull["by"]}


def assert_changed_in_place(workspace, stack):
    """Nothing to do, smoke checks pass, a shorter length is a new document for the same machine, and the server has it."""
    workspace.assert_no_changes(stack)
    assert workspace.script("smoke", "--stack", stack, "--json").json["passed"] is True
    before = machines(workspace, stack)
    workspace.configure(stack, **{"vllm.maxModelLen": 2048})
    workspace.up(stack)
    assert machines(workspace, stack) == before
    assert workspace.served_length(stack) == 2_048


def assert_replicated_in_place(workspace, stack):
    """Four replicas are a new document for the same machine; the server has an engine for each."""
    before = machines(workspace, stack)
    workspace.configure(stack, **{"vllm.tensorParallelSize": None})
    workspace.configure(stack, **{"vllm.dataParallelSize": 4})
    shown = workspace.up(stack)
    assert "KV cache of each of 4 replicas" in " ".join(shown.text.split())
    assert machines(workspace, stack) == before
    report = workspace.script("smoke", "--stack", stack, "--json").json
    assert report["passed"] is True
    (options,) = [check for check in report["checks"] if check["name"] == "options in effect"]
    assert options["measured"].startswith("4 engines, each "), options


def machines(workspace, stack):
    """The TPU machines that there are, with the moment in which each was created."""
    names = workspace.made(f"/nodes/gemma-{stack}")
    found = {name: workspace.get("tpu", f"v2alpha1/{name}")["createTime"] for name in names}
    assert found
    return found


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_lives_with_secrets_in_no_sink_and_leaves_nothing(workspace, stack, elsewhere):
    wanted = settings(stack)
    plan = workspace.script("plan", "--stack", stack, "--json").json
    assert plan["verdict"] == "fits"
    workspace.pulumi("stack", "init", stack)
    workspace.script("save_token", "hfToken", "--stack", stack, stdin=HF_CANARY)
    workspace.script("save_token", "apiKey", "--stack", stack, stdin=KEY_CANARY)
    if wanted["weights"] == "bucket":
        workspace.stage(stack)
    workspace.up(stack)
    regions, afar = pulls_from_afar(workspace)
    assert afar == []
    assert not elsewhere or ("docker.io", "europe-west4") in regions
    assert workspace.served_length(stack) == wanted["vllm"]["maxModelLen"]
    if "image" in wanted:
        assert_built_and_pulled(workspace, stack, built_images("tpu")[wanted["image"]])
    if stack in WHOLE_LIFE:
        assert_changed_in_place(workspace, stack)
    if stack == REPLICAS:
        assert_replicated_in_place(workspace, stack)
    assert_nowhere_in_clear(workspace, HF_CANARY, KEY_CANARY)
    workspace.teardown(stack)
