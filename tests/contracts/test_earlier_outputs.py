"""Outputs of a stack that an earlier release deployed: those of 0.2.0 are read, those of 0.1.0 name the command."""

import json
from pathlib import Path

import pytest

from contracts.errors import CommandRefusedError
from contracts.outputs import DETAILS_TYPE, MarginSummary
from engine.deployment import ResourceState
from engine.stack import STACK_TYPE, outputs_in
from tests.scripts.sample_outputs import sample_outputs

STATES = Path(__file__).parents[1] / "fixtures" / "state"
# As 0.2.0 wrote it, with the keys that 0.3.0 does not write.
MARGIN = {
    "verdict": "may fail",
    "says": "may fail",
    "finding": "FIT05",
    "availableGib": 1.102,
    "hasGib": 1.102,
    "minimumGib": 0.816,
    "needsGib": 0.816,
    "recommendedGib": 1.257,
    "enoughGib": 1.257,
}


def test_outputs_of_0_2_0_are_read():
    raw = sample_outputs()
    details = {"plan": raw.pop("plan") | {"margin": MARGIN}}
    resources = [{"type": STACK_TYPE, "outputs": raw}, {"type": DETAILS_TYPE, "outputs": details}]
    assert outputs_in("x", [ResourceState(one) for one in resources]).plan.margin == MarginSummary(
        verdict="may fail", finding="FIT05", available_gib=1.102, minimum_gib=0.816, recommended_gib=1.257
    )


@pytest.mark.parametrize("stack", ["tpu-v6e4", "l4-qat"])
def test_outputs_of_0_1_0_name_the_command(stack):
    state = json.loads((STATES / f"{stack}.json").read_text())
    with pytest.raises(CommandRefusedError, match=rf"^The outputs .* Run `pulumi up --stack {stack}`\.$"):
        outputs_in(stack, [ResourceState(one) for one in state["deployment"]["resources"]])
