"""The provider and the commands call the same capacity by the same state."""

from gcp_tpu_provider import tpu_api
from gemma_serving.contracts import capacity_states
from localcloud.rest.discovery import document_for


def test_what_is_dead_or_waits_for_the_provider_is_so_for_the_commands():
    assert capacity_states.DEAD == tpu_api.DEAD
    assert capacity_states.LOST_NODES == tpu_api.DEAD_NODE
    assert capacity_states.WAITING | {capacity_states.ACTIVE} == tpu_api.ACCEPTED_OR_LATER


def test_each_state_of_a_request_is_before_its_machine_or_with_it_or_after_it():
    """UNKNOWN is the commands' own word for a state that was never read."""
    schemas = document_for("tpu", "v2alpha1/").schemas
    documented = {*schemas["QueuedResourceState"]["properties"]["state"]["enum"]} - {"STATE_UNSPECIFIED"}
    parts = [capacity_states.WITHOUT_MACHINE, {capacity_states.ACTIVE}, capacity_states.DEAD, {"DELETING"}]
    assert sorted(state for part in parts for state in part) == sorted({*documented, "UNKNOWN"})
    assert {"FAILED"} == capacity_states.DEAD - capacity_states.ENDED
