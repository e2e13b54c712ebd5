"""Outputs of a stack that another version of the project deployed: the refusal names the command."""

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.outputs import DETAILS_TYPE
from gemma_serving.contracts.resource_types import SERVICE_TYPE
from gemma_serving.engine.exported_state import ResourceState
from gemma_serving.engine.state import STACK_TYPE, outputs_in
from tests.scripts.sample_outputs import sample_outputs


def test_outputs_of_another_version_name_the_command():
    raw = sample_outputs()
    details = {"plan": {key: value for key, value in raw.pop("plan").items() if key != "memory"}}
    resources = [
        {"type": STACK_TYPE, "outputs": raw},
        {"type": DETAILS_TYPE, "outputs": details},
        {"type": SERVICE_TYPE, "outputs": {}},
    ]
    with pytest.raises(CommandRefusedError, match=r"^The outputs .* plan\.memory is missing.* Run `gemma up x`\.$"):
        outputs_in("x", [ResourceState(one) for one in resources])
