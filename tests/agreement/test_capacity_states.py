"""The provider and the commands call the same capacity by the same state."""

from gcp_tpu_provider import compute_api, tpu_api
from gemma_serving.contracts import capacity_states


def test_an_instance_has_one_state_whoever_reads_it():
    assert capacity_states.INSTANCE_STATES == compute_api._STATES


def test_what_is_dead_or_waits_for_the_provider_is_so_for_the_commands():
    assert capacity_states.DEAD == tpu_api.DEAD
    assert capacity_states.LOST_NODES == tpu_api.DEAD_NODE
    assert capacity_states.WAITING | {capacity_states.ACTIVE} == tpu_api.ACCEPTED_OR_LATER
