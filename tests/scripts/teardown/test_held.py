"""What only Google holds is named with its end, and nothing else is: each planted user, unread list and foreign address makes it leaked."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.held import HOLD, addresses_in, held_in
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.search_results import FoundResource, Inventory
from gemma_serving.engine.state import stored
from gemma_serving.scripts.stack.facts import held_sentence
from localcloud.tests.google_bodies import google_answer
from localcloud.world.scenario import Fault
from tests.cloud.populated import PROJECT, asker, open_world, owner
from tests.laws import examples
from tests.polling import until
from tests.scripts.teardown.conftest import SCENARIO, STACK, Desk

NAME, REGION = f"gemma-{STACK}", "us-east4"
NETWORK, PLACE = f"projects/{PROJECT}/global/networks/{NAME}", f"projects/{PROJECT}/regions/{REGION}"
SUBNETWORK = f"{PLACE}/subnetworks/{NAME}"
RESOURCES = [
    {"urn": "u1", "type": "gcp:compute/network:Network", "custom": True, "id": NETWORK, "inputs": {}},
    {"urn": "u2", "type": "gcp:compute/subnetwork:Subnetwork", "custom": True, "id": SUBNETWORK, "inputs": {}},
]
"""Resources in the state of the stack after its teardown."""
LINK, OF_RUN = "https://www.googleapis.com/compute/v1/", ("serverless-ipv4-1", "SERVERLESS")


@dataclass(frozen=True)
class Addresses:
    """An API that lists the addresses of a region."""

    items: Sequence
    unreachable: Sequence = ()

    def pages(self, api, path):
        assert path == f"compute/v1/{PLACE}/addresses"
        page = google_answer("GET", f"{api}/{path}", {"items": self.items})
        yield {**page, "unreachables": self.unreachable}


def resource(kind, name, document):
    return FoundResource(kind=kind, name=name, command="", owner=owner(STACK), document=document)


@pytest.fixture
def held(tmp_path, monkeypatch, capsys):
    """A stack with a service in a subnetwork, on a cloud whose two hours are longer than a test."""
    with open_world(SCENARIO, speed=10) as world:
        desk = Desk(world, tmp_path, monkeypatch, capsys)
        desk.sleeps(lambda _: None)  # between the attempts of a refused deletion
        yield served(desk)


def served(desk):
    description = owner(STACK).description
    network = {"name": NAME, "autoCreateSubnetworks": False, "description": description}
    desk.world.call("POST", "compute", f"compute/v1/projects/{PROJECT}/global/networks", network)
    subnetwork = {"name": NAME, "network": NETWORK, "ipCidrRange": "10.80.0.0/24", "description": description}
    desk.world.call("POST", "compute", f"compute/v1/{PLACE}/subnetworks", subnetwork)
    serve(desk, NAME, dict(owner(STACK).labels))
    return desk


def torn_down(written=None):
    """Return the state of the stack after its teardown."""
    return {"manifest": {"time": (written or datetime.now(UTC)).isoformat()}, "resources": RESOURCES}


def serve(desk, name, labels):
    """Deploy a service without a GPU in the subnetwork."""
    interface = {"network": NETWORK, "subnetwork": SUBNETWORK}
    container = {"image": "us-docker.pkg.dev/cloudrun/container/hello"}
    template = {"containers": [container], "vpcAccess": {"networkInterfaces": [interface], "egress": "ALL_TRAFFIC"}}
    path = f"v2/projects/{PROJECT}/locations/{REGION}/services?serviceId={name}"
    desk.world.call("POST", "run", path, {"labels": labels, "template": template})
    until(lambda: desk.world.cloud.cloud.store.under("compute.addresses"), "Cloud Run reserves addresses")


def advance(desk, time):
    desk.world.cloud.cloud.timeline.advance(time.total_seconds())


def kinds(found):
    return [item["kind"] for item in found]


def test_what_google_holds_is_no_failure_and_goes_without_a_question(held):
    code, receipt, _ = held.run("--dry-run")
    assert (code, kinds(receipt["leaked"]), receipt["held"]) == (1, ["Cloud Run service", "subnetwork", "network"], [])
    before = GOOGLE_CLOCK.now()
    for words in (["--yes"], [], ["--dry-run"]):
        code, receipt, _ = held.run(*words)
        held.leave()
        held.state(torn_down())
        assert (code, receipt["clean"], receipt["leaked"]) == (0, True, []), words
        assert kinds(receipt["held"]) == ["subnetwork", "network"]
        until = datetime.fromisoformat(receipt["held"][0]["until"])
        assert timedelta() <= until - HOLD - before < timedelta(minutes=1)
        assert [name.startswith("serverless-ipv4-") for name in receipt["held_by"]] == [True]
    advance(held, HOLD)
    code, _, said = held.run()
    assert (code, "Pass --yes to confirm" in said) == (2, True)
    held.answer("yes")
    code, receipt, said = held.run()
    assert "Delete stack x of the Pulumi project gemma-serving: 2 resources in Google Cloud?" in said
    assert (code, kinds(receipt["deleted"]), receipt["held"]) == (0, ["subnetwork", "network"], [])
    assert held.world.resources() == set()


def read_by(held):
    """Return what status and `gemma` say of the stack, by its state and Google's answer."""
    return held_sentence(stored(STACK))


def test_only_an_answer_of_google_says_that_it_released_the_network(held):
    written = datetime.now(UTC)
    held.state(torn_down(written))
    until = f"{(written + HOLD).astimezone():%H:%M}"
    assert read_by(held) == f"Deleted. Google holds its network until about {until}, $0."
    cloud = held.world.cloud.cloud
    denied = Fault(method="compute.addresses.list", count=99, status=403)
    cloud.scenario = cloud.scenario.model_copy(update={"faults": (denied,)})
    assert read_by(held).startswith(
        f"Deleted, except its network, which Google holds until {until} at most (Google returned"
    )
    assert read_by(held).endswith("). Then `gemma teardown x` deletes it, $0.")
    cloud.scenario = cloud.scenario.model_copy(update={"faults": ()})
    held.world.call("DELETE", "run", f"v2/projects/{PROJECT}/locations/{REGION}/services/{NAME}")
    advance(held, HOLD)
    assert read_by(held) == "Deleted. Google has released its network: `gemma teardown x` deletes it, $0."
    assert {NETWORK, SUBNETWORK} <= held.world.resources()


NAMES = ["serverless-ipv4-1", "serverless-ipv6-2", "internal"]
ADDRESS = st.tuples(
    st.integers(0, 1), st.sampled_from(NAMES), st.sampled_from(["SERVERLESS", "SERVERLESS", "GCE_ENDPOINT"])
)
OTHER = f"{PLACE}/subnetworks/theirs"
HELD = {"inside": 2, "users": {SUBNETWORK, OTHER}, "is_listed": True, "peerings": {}, "unknown": ()}


@settings(max_examples=examples(test=100, part=500, night=5000))
@given(
    inside=st.integers(0, 2),
    users=st.sets(st.sampled_from([NETWORK, SUBNETWORK, OTHER, "a machine"])),
    is_listed=st.sampled_from([True, True, False]),
    peerings=st.sampled_from([{}, {}, {"peerings": [{"name": "theirs"}]}]),
    unknown=st.sampled_from([(), (), ("unread",)]),
    addresses=st.lists(ADDRESS, max_size=3),
)
@example(**HELD, addresses=[(0, *OF_RUN), (1, *OF_RUN)])
@example(**HELD, addresses=[(0, *OF_RUN)])
@example(**HELD, addresses=[(0, *OF_RUN), (0, "internal", "SERVERLESS"), (1, *OF_RUN)])
@example(**{**HELD, "inside": 1, "users": {SUBNETWORK}}, addresses=[(1, *OF_RUN)])
@example(**{**HELD, "peerings": {"peerings": [{"name": "theirs"}]}}, addresses=[(0, *OF_RUN), (1, *OF_RUN)])
def test_only_google_holds_a_network_whose_only_users_are_its_subnetworks_with_addresses_of_cloud_run(
    *, inside, users, is_listed, peerings, unknown, addresses
):
    subnetworks = [SUBNETWORK, OTHER]
    found = [
        resource("network", NETWORK, peerings),
        resource("network", f"{NETWORK}-2", {}),  # without a subnetwork
        resource("router", f"{PLACE}/routers/r", {"network": LINK + NETWORK}),
    ]
    found += [resource("subnetwork", name, {"network": LINK + NETWORK}) for name in subnetworks[:inside]]
    shown = [
        {"name": name, "purpose": purpose, "subnetwork": LINK + subnetworks[of]} for of, name, purpose in addresses
    ]
    seen = dict.fromkeys([NETWORK, *subnetworks], sorted(users)) if is_listed else {}
    seen[f"{NETWORK}-2"] = []
    inventory = Inventory(asker=asker(STACK), found=found, calls=(), unknown=unknown, elapsed_s=1, users=seen)
    are_users_own = is_listed and users <= {NETWORK, *subnetworks[:inside]}
    of_each = [[address for address in addresses if address[0] == number] for number in range(inside)]
    are_of_run = all(
        each and all(name != "internal" and purpose == "SERVERLESS" for _, name, purpose in each) for each in of_each
    )
    is_held = inside and are_users_own and not peerings and not unknown and are_of_run
    reason = [name for each in of_each for _, name, _ in each]
    assert held_in(Addresses(shown), inventory, found) == (
        dict.fromkeys([NETWORK, *subnetworks[:inside]], reason) if is_held else {}
    )


def test_a_region_that_could_not_be_reached_has_no_list_of_addresses():
    with pytest.raises(ScriptError, match="r could not be reached"):
        addresses_in(Addresses([], unreachable=["r"]), SUBNETWORK)
