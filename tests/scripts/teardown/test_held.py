"""What only Google holds is named with its end, and nothing else is: each planted user, unread list and foreign address makes it leaked."""

from datetime import UTC, datetime, timedelta

import pytest

from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.held import GRACE, HOLD
from gemma_serving.engine.state import stored
from gemma_serving.scripts.stack.facts import held_sentence
from localcloud.world.scenario import Fault
from tests.cloud.populated import GLOBAL, PROJECT, open_world, owner
from tests.polling import until
from tests.scripts.teardown.conftest import SCENARIO, STACK, Desk

NAME, REGION, OTHER = f"gemma-{STACK}", "us-east4", "theirs"
NETWORK, PLACE = f"{GLOBAL}/networks/{NAME}", f"projects/{PROJECT}/regions/{REGION}"
SUBNETWORK = f"{PLACE}/subnetworks/{NAME}"
RESOURCES = [
    {"urn": "u1", "type": "gcp:compute/network:Network", "custom": True, "id": NETWORK, "inputs": {}},
    {"urn": "u2", "type": "gcp:compute/subnetwork:Subnetwork", "custom": True, "id": SUBNETWORK, "inputs": {}},
]
"""Resources in the state of the stack after its teardown."""
INTERFACE = {"network": NETWORK, "subnetwork": SUBNETWORK}


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
    desk.world.call("POST", "compute", f"compute/v1/{GLOBAL}/networks", network)
    subnetwork = {"name": NAME, "network": NETWORK, "ipCidrRange": "10.80.0.0/24", "description": description}
    desk.world.call("POST", "compute", f"compute/v1/{PLACE}/subnetworks", subnetwork)
    serve(desk, NAME, dict(owner(STACK).labels))
    return desk


def torn_down(written=None):
    """Return the state of the stack after its teardown."""
    return {"manifest": {"time": (written or datetime.now(UTC)).isoformat()}, "resources": RESOURCES}


def serve(desk, name, labels, interface=INTERFACE):
    """Deploy a service without a GPU in the subnetwork."""
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


def test_without_a_state_all_stacks_have_the_same_answer_and_no_end(held):
    held.run("--yes")
    code, receipt, _ = held.run(stack=None)
    assert (code, kinds(receipt["held"])) == (0, ["subnetwork", "network"])
    assert [item["until"] for item in receipt["held"]] == [None, None]
    advance(held, HOLD)
    code, receipt, _ = held.run(stack=None)
    assert (code, receipt["leaked"], receipt["held"]) == (0, [], [])


def test_what_another_folder_deployed_since_is_not_what_google_held(held):
    held.run("--yes")
    held.state(torn_down())
    serve(held, NAME, dict(owner(STACK).labels))
    held.leave()
    code, receipt, _ = held.run("--yes")
    assert (code, receipt["left"]) == (1, [f"projects/{PROJECT}/locations/{REGION}/services/{NAME}"])
    assert {*receipt["left"]} <= held.world.resources()


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


def test_a_wait_has_an_end(held, monkeypatch):
    """The end of a wait for what Google never releases is a leak."""
    monkeypatch.setattr("localcloud.services.networks.HELD_S", 1e9)
    now_s = [0.0]

    def sleep(seconds):
        now_s[0] += seconds
        advance(held, timedelta(seconds=seconds))

    held.sleeps(sleep, now_s=lambda: now_s[0])
    monkeypatch.setattr("gemma_serving.scripts.teardown.removal._POLL_S", 600.0)
    code, receipt, _ = held.run("--yes", "--wait")
    assert (code, kinds(receipt["leaked"]), receipt["held"]) == (1, ["subnetwork", "network"], [])
    assert 0 <= now_s[0] - (HOLD + GRACE).total_seconds() < 1800


def machine(desk):
    desk.world.queued("theirs", {})
    store = desk.world.cloud.cloud.store
    ((name, node),) = store.under("tpu.nodes")
    store.put("tpu.nodes", name, {**node, "networkConfig": {"network": NETWORK.replace(PROJECT, "123456789012")}})


def subnetwork(desk):
    body = {"name": OTHER, "network": NETWORK, "ipCidrRange": "10.90.0.0/24"}
    desk.world.call("POST", "compute", f"compute/v1/{PLACE}/subnetworks", body)


def rule(desk):
    body = {"name": OTHER, "network": NETWORK, "allowed": [{"IPProtocol": "tcp"}]}
    desk.world.call("POST", "compute", f"compute/v1/{GLOBAL}/firewalls", body)


def changed_address(desk, **fields):
    store = desk.world.cloud.cloud.store
    ((name, address),) = store.under("compute.addresses")
    store.put("compute.addresses", f"{name.rpartition('/')[0]}/{fields.pop('name', 'internal')}", {**address, **fields})


def peered(desk):
    store = desk.world.cloud.cloud.store
    store.put("compute.networks", NETWORK, {**store.get("compute.networks", NETWORK), "peerings": [{"name": OTHER}]})


FAULTS = {
    "a machine, under the project's number": machine,
    "another service, with the last part of the name": lambda desk: serve(desk, OTHER, {}, {"subnetwork": NAME}),
    "another subnetwork": subnetwork,
    "a firewall rule": rule,
    "a peering": peered,
    "an address of another purpose": lambda desk: changed_address(desk, purpose="GCE_ENDPOINT"),
    "an address of another name": changed_address,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_held_that_has_another_user(held, fault):
    FAULTS[fault](held)
    code, receipt, _ = held.run("--yes")
    assert (code, receipt["held"], receipt["clean"]) == (1, [], False), fault
    assert "network" in kinds(receipt["leaked"])


@pytest.mark.parametrize("method", ["compute.addresses.list", "run.projects.locations.services.list"])
def test_nothing_is_held_after_a_list_that_was_not_read(held, method):
    held.run("--yes")
    cloud = held.world.cloud.cloud
    cloud.scenario = cloud.scenario.model_copy(update={"faults": (Fault(method=method, count=99, status=403),)})
    code, receipt, _ = held.run("--yes")
    assert (code, receipt["held"], receipt["clean"]) == (1, [], False)
    assert "Could not " in " ".join([*receipt["unknown"], *receipt["warnings"]])
