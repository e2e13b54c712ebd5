"""The egress that a network's firewall rules allow its machines, and the effect on a machine."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from localcloud.running.shims import docker_images
from localcloud.running.shims.docker import own_host
from localcloud.running.shims.docker_host import DockerError
from localcloud.running.shims.machine import Machine
from localcloud.services.networks import allows_egress

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


def test_a_machine_that_may_not_connect_to_google_pulls_no_image(tmp_path: Path):
    machine = Machine(folder=tmp_path, google=False)
    with pytest.raises(DockerError, match="i/o timeout"):
        docker_images.pull(own_host(machine), "us-docker.pkg.dev/p/r/image:1", quiet=True)
