"""The provider and the commands call the same capacity by the same state."""

from gcp_tpu_provider import tpu_api
from gemma_serving.contracts import capacity_states


def test_what_is_dead_or_waits_for_the_provider_is_so_for_the_commands():
    assert capacity_states.DEAD == tpu_api.DEAD
    assert capacity_states.LOST_NODES == tpu_api.DEAD_NODE
    assert capacity_states.WAITING | {capacity_states.ACTIVE} == tpu_api.ACCEPTED_OR_LATER
