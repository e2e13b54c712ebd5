"""The egress and ingress that a network's firewall rules allow its machines, and the effect on a machine."""

from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace

import pytest

from localcloud.running.shims import docker_images
from localcloud.running.shims.docker import own_host
from localcloud.running.shims.docker_host import DockerError
from localcloud.running.shims.machine import Machine
from localcloud.services.networks import allows_egress, allows_ingress

NETWORK = "projects/p/global/networks/n"


def rule(priority, *, allow=(), deny=(), **changes):
    """A stored rule for all addresses; `allow` and `deny` are protocols with their ports."""
    traffic = {
        key: [{"IPProtocol": protocol, **({"ports": list(ports)} if ports else {})} for protocol, *ports in given]
        for key, given in (("allowed", allow), ("denied", deny))
        if given
    }
    common = {"network": NETWORK, "direction": "EGRESS", "disabled": False, "destinationRanges": ["0.0.0.0/0"]}
    return {**common, "priority": priority, **traffic, **changes}


def world(rules):
    """A cloud that has these rules only."""
    store = SimpleNamespace(under=lambda _kind: [(str(number), each) for number, each in enumerate(rules)])
    return SimpleNamespace(store=store)


HTTPS, NOTHING = rule(1000, allow=[("tcp", "443")]), rule(65534, deny=[("all",)])


@pytest.mark.parametrize(
    ("rules", "ports"),
    [
        ([], {80, 443, 22}),
        ([HTTPS], {80, 443, 22}),
        ([NOTHING], set()),
        ([HTTPS, NOTHING], {443}),
        ([rule(1000, allow=[("tcp", "80-443")]), NOTHING], {80, 443}),
        ([rule(1000, allow=[("udp",)]), NOTHING], set()),
        ([HTTPS, rule(1000, deny=[("tcp",)])], set()),
        ([HTTPS, {**NOTHING, "disabled": True}], {80, 443, 22}),
        ([HTTPS, {**NOTHING, "direction": "INGRESS"}], {80, 443, 22}),
        ([HTTPS, {**NOTHING, "network": "projects/p/global/networks/other"}], {80, 443, 22}),
        ([HTTPS, {**NOTHING, "targetTags": ["other"]}], {80, 443, 22}),
        ([HTTPS, {**NOTHING, "targetTags": ["mine"]}], {443}),
    ],
)
def test_the_first_rule_by_priority_decides_and_of_two_the_one_that_denies(rules, ports):
    assert {port for port in (80, 443, 22) if allows_egress(world(rules), NETWORK, ["mine"], port)} == ports


INSIDE = {"direction": "INGRESS", "sourceRanges": ["10.80.0.0/16"]}
SERVER = rule(1000, allow=[("tcp", "8000")], **INSIDE)


def test_ingress_needs_a_rule_that_covers_the_whole_range(subtests: pytest.Subtests):
    """The source is the range 10.80.0.0/20 of a Cloud Run service, the machine has the tag `mine` and the account `me`."""
    deny = rule(1000, deny=[("all",)], direction="INGRESS", sourceRanges=["10.80.15.0/24"])
    cases = {
        "no rule": ([], False),
        "the range": ([SERVER], True),
        "exactly the range": ([{**SERVER, "sourceRanges": ["10.80.0.0/20"]}], True),
        "a part of the range": ([{**SERVER, "sourceRanges": ["10.80.0.0/21"]}], False),
        "one of two ranges": ([{**SERVER, "sourceRanges": ["10.9.0.0/16", "10.80.0.0/16"]}], True),
        "an IPv6 range": ([{**SERVER, "sourceRanges": ["::/0"]}], False),
        "another port": ([rule(1000, allow=[("tcp", "8001")], **INSIDE)], False),
        "egress": ([{**SERVER, "direction": "EGRESS"}], False),
        "another network": ([{**SERVER, "network": "projects/p/global/networks/other"}], False),
        "disabled": ([{**SERVER, "disabled": True}], False),
        "for the machine's tag": ([{**SERVER, "targetTags": ["mine"]}], True),
        "for another tag": ([{**SERVER, "targetTags": ["other"]}], False),
        "for the machine's account": ([{**SERVER, "targetServiceAccounts": ["me"]}], True),
        "for another account": ([{**SERVER, "targetServiceAccounts": ["other"]}], False),
        "from a tag, which no instance of Cloud Run has": (
            [{**SERVER, "sourceRanges": [], "sourceTags": ["run"]}],
            False,
        ),
        "denied at the same priority, for a part": ([SERVER, deny], False),
        "denied first": ([SERVER, {**deny, "priority": 999}], False),
        "denied later": ([SERVER, {**deny, "priority": 1001}], True),
        "denied elsewhere": ([SERVER, {**deny, "sourceRanges": ["10.81.0.0/24"]}], True),
    }
    source = IPv4Network("10.80.0.0/20")
    for name, (rules, allowed) in cases.items():
        with subtests.test(name):
            cloud = world(rules)
            assert allows_ingress(cloud, NETWORK, source, tags=["mine"], account="me", port=8000) is allowed


def test_a_machine_that_may_not_connect_to_google_pulls_no_image(tmp_path: Path):
    machine = Machine(folder=tmp_path, google=False)
    with pytest.raises(DockerError, match="i/o timeout"):
        docker_images.pull(own_host(machine), "us-docker.pkg.dev/p/r/image:1", quiet=True)
