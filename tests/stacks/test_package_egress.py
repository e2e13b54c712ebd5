"""The egress of a subnetwork that a program gives: present, absent or unknown, and what the person is told."""

import pulumi
import pytest

from tests.conftest import Recorder
from tests.stacks.test_package import NETWORK, PROJECT, construct, inputs_of  # noqa: F401 - `construct` is a fixture

LINK, OTHER_LINK = f"https://www.googleapis.com/compute/v1/{NETWORK}", "https://other"
NO_NAT = ("warn", "has no Cloud NAT")
ALL, LISTED = "ALL_SUBNETWORKS_ALL_IP_RANGES", "LIST_OF_SUBNETWORKS"


@pytest.fixture
def told(construct, monkeypatch):  # noqa: F811 - the fixture
    """Construct a component in a network, and return what is logged about it."""

    def made(kind, *, access, nat, network=LINK, **changes):
        def call(_, args):
            nats = [{"name": "nat", "sourceSubnetworkIpRangesToNat": ranges} for ranges in nat]
            subnetwork = {"name": "own", "network": LINK, "privateIpGoogleAccess": access}
            return {
                "gcp:compute/getSubnetworks:getSubnetworks": {
                    "subnetworks": [subnetwork] if access is not None else []
                },
                "gcp:compute/getRouters:getRouters": {"routers": [{"name": "r", "network": network, "nats": nats}]},
            }[args.token]

        monkeypatch.setattr(Recorder, "call", call)
        lines = []
        for level in ("info", "warn"):
            monkeypatch.setattr(pulumi.log, level, lambda text, *_, level=level: lines.append((level, text)))
        construct(kind, inputs_of(kind, network=NETWORK, **{"subnetwork": "own", **changes}))
        return [(level, text) for level, text in lines if "subnetwork" in text]

    return made


@pytest.mark.parametrize(
    ("access", "nat", "network", "hub", "bucket"),
    [
        (True, (), LINK, NO_NAT, None),
        (False, (), LINK, NO_NAT, ("warn", "has no Private Google Access")),
        (False, (ALL,), LINK, None, None),
        (False, ("ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES", LISTED), LINK, None, None),
        (False, (ALL,), OTHER_LINK, NO_NAT, ("warn", "has no Private Google Access")),
        (True, (LISTED,), LINK, ("info", "is for listed subnetworks only"), None),
        (None, (), LINK, ("info", "no such subnetwork is listed"), ("info", "no such subnetwork is listed")),
    ],
)
def test_what_a_subnetwork_lacks_is_one_line(told, *, access, nat, network, hub, bucket):
    for says, changes in ((hub, {}), (bucket, {"weights": "bucket", "bucketName": "their-models"})):
        found = told("CloudRunGpuService", access=access, nat=nat, network=network, **changes)
        assert [level for level, _ in found] == ([says[0]] if says else [])
        assert all(f"projects/{PROJECT}/regions/us-east4/subnetworks/own has" in text for _, text in found)
        assert all(says[1] in text for _, text in found)


def test_an_image_of_docker_hub_needs_nat_on_a_tpu(told):
    """The TPU VM pulls it itself. Weights in a bucket do not help."""
    found = told("TpuQueuedResource", access=True, nat=(), weights="bucket", bucketName="their-models")
    assert [level for level, _ in found] == ["warn"]
    assert "regions/us-east5/subnetworks/own has no Cloud NAT" in found[0][1]
    assert told("TpuQueuedResource", access=True, nat=[ALL]) == []


def test_an_output_is_not_checked_and_the_held_subnetwork_is_named(told):
    name = pulumi.Output.from_input("own")
    unchecked, held = told("CloudRunGpuService", access=True, nat=(), subnetwork=name)
    assert unchecked[0] == "info"
    assert unchecked[1].startswith("Not checked that subnetwork has Cloud NAT, because it is an output. Without it, ")
    assert held[0] == "info"
    assert "`pulumi destroy`" in held[1]


def test_a_subnetwork_of_ones_own_in_full_is_read_once(told):
    whole = "projects/host-project/regions/us-east4/subnetworks/own"
    ((_, text),) = told("CloudRunGpuService", access=True, nat=(), subnetwork=whole)
    assert text.startswith(f"{whole} has no Cloud NAT")
