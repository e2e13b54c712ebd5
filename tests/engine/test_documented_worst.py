"""Every stack comes up, stays free of drift and goes where each wait is as long as Google documents, and calls have to be repeated.

`documented-worst` in packages/localcloud/world/data/scenarios.json has the figures.
"""

from pathlib import Path

import pytest
import yaml

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.stacks.apis import COMMON_APIS
from localcloud.world.scenario import BUILT_IN
from tests.engine.conftest import open_workspace

ROOT = Path(__file__).resolve().parents[2]
WORST = BUILT_IN["documented-worst"].model_dump(mode="json")
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def worst(tmp_path_factory):
    with open_workspace(tmp_path_factory.mktemp("worst"), "--scenario", "documented-worst") as workspace:
        workspace.put_scenario({**WORST, "faults": []})
        apis = (*COMMON_APIS, "tpu", "compute", "iap", "oslogin", "run", "monitoring")
        workspace.enable(*(f"{api}.googleapis.com" for api in apis))  # they respond four minutes later
        yield workspace


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_comes_up_stays_free_of_drift_and_goes(worst, stack):
    worst.put_scenario(WORST)  # its faults come for each stack
    wanted = yaml.safe_load(settings_file(stack, ROOT).read_text())["config"]
    worst.pulumi("stack", "init", stack)
    if wanted["gemma-serving:weights"] == "bucket":
        worst.stage(stack)
    came_up = worst.up(stack, expect=None)
    assert "Waiting up to" in came_up.text
    if came_up.code != 0:
        assert f"had not taken effect yet. Run `gemma up {stack}` again." in came_up.text
        worst.advance(420)
        worst.up(stack)
    assert worst.served_length(stack) == wanted["gemma-serving:vllm"]["maxModelLen"]
    worst.assert_no_changes(stack, "--refresh")
    worst.teardown(stack)
