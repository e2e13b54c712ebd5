"""Laws about what is left of a deleted stack: only a state with nothing but networks is one that Google holds, and only Google releases it."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack import held_networks
from gemma_serving.scripts.stack.held_networks import HeldNetwork, held_network, is_held
from tests.laws import examples

WRITTEN = datetime(2026, 11, 20, 12, tzinfo=UTC)
NETWORK, SUBNETWORK = "gcp:compute/network:Network", "gcp:compute/subnetwork:Subnetwork"
RESOURCES = st.lists(
    st.sampled_from(
        [(NETWORK, True), (SUBNETWORK, True), (SUBNETWORK, True), ("gemma:Gateway", False), ("gcp:a:B", True)]
    ),
    max_size=4,
)
ANSWERS = st.lists(st.sampled_from(["held", "released", "released", "denied"]), min_size=1, max_size=4)
law = settings(max_examples=examples(test=100, part=500, night=5000))


@law
@given(RESOURCES, st.sampled_from([(), (), ({"type": NETWORK},)]), st.sampled_from([WRITTEN.isoformat(), ""]))
def test_only_a_state_with_nothing_but_networks_and_a_subnetwork_may_be_held(resources, pending, written):
    items = [{"type": type_, "custom": custom, "id": f"r{number}"} for number, (type_, custom) in enumerate(resources)]
    inside = tuple(item["id"] for item in items if item["type"] == SUBNETWORK)
    are_networks = all(type_ in {NETWORK, SUBNETWORK} for type_, custom in resources if custom)
    found = held_network(StackState(stack="x", status="read", resources=items, pending=pending, written=written))
    may_be_held = inside and are_networks and not pending and written
    assert found == (HeldNetwork(stack="x", subnetworks=inside, written=WRITTEN) if may_be_held else None)


@law
@given(ANSWERS)
def test_google_holds_a_network_with_one_address_and_has_released_it_only_by_every_answer(answers):
    names = [f"projects/p/regions/r/subnetworks/{number}" for number in range(len(answers))]

    def addresses_in(project, name):
        if project != "p" or (answer := answers[names.index(name)]) == "denied":
            raise GoogleListError(403, f"{project} denied {name}", "")
        return ["an address"] if answer == "held" else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_networks, "connect", lambda project: project)
        patch.setattr(held_networks, "addresses_in", addresses_in)
        found = is_held(HeldNetwork(stack="x", subnetworks=tuple(names), written=WRITTEN))
    if "held" in answers:
        assert found == Present(None)
    elif "denied" in answers:
        assert found == Unknown(f"Google returned an error: p denied {names[answers.index('denied')]}")
    else:
        assert found == Absent()
