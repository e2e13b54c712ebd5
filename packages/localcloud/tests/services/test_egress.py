"""The egress that a network's firewall rules allow its machines, and the effect on a machine."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from localcloud.running.shims import docker_images
from localcloud.running.shims.docker import own_host
from localcloud.running.shims.docker_host import DockerError
from localcloud.running.shims.machine import Machine
from localcloud.services.networks import allows_egress
from localcloud.tests.services.test_run_rules import PLAIN, P, changed, deploy

NETWORK = "projects/p/global/networks/n"
COMPUTE = f"/compute/compute/v1/{P}"


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


@pytest.mark.parametrize(
    ("image", "closed"),
    [("us-docker.pkg.dev/p/r/image:1", {"google": False}), ("vllm/vllm-tpu:1", {"internet": False})],
)
def test_a_machine_that_does_not_reach_a_registry_pulls_no_image(tmp_path: Path, image, closed):
    machine = Machine(folder=tmp_path, **closed)
    with pytest.raises(DockerError, match="i/o timeout"):
        docker_images.pull(own_host(machine), image, quiet=True)


REGION, OTHER = "us-east4", "us-central1"
PRIMARY, SECONDARY = ["PRIMARY_IP_RANGE"], ["LIST_OF_SECONDARY_IP_RANGES"]


def nat_of(ranges, *, name="sub", region=REGION, network="vpc", **changes):
    """A NAT; with `ranges`, for these ranges of one subnetwork only."""
    listed = [{"name": f"{P}/regions/{region}/subnetworks/{name}", "sourceIpRangesToNat": ranges}]
    chosen = {"sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES"}
    if ranges is not None:
        chosen = {"sourceSubnetworkIpRangesToNat": "LIST_OF_SUBNETWORKS", "subnetworks": listed}
    return region, network, {"name": "nat", "natIpAllocateOption": "AUTO_ONLY", **chosen, **changes}


def network_of(client, access, nat, region=REGION):
    """Create the network `vpc` with a subnetwork in the region, and the NAT of `nat_of` if there is one."""
    client.ok("POST", f"{COMPUTE}/global/networks", {"name": "vpc", "autoCreateSubnetworks": False})
    subnetwork = {"name": "sub", "network": f"{P}/global/networks/vpc", "ipCidrRange": "10.80.0.0/26"}
    client.ok("POST", f"{COMPUTE}/regions/{region}/subnetworks", {**subnetwork, "privateIpGoogleAccess": access})
    if nat is not None:
        place, network, body = nat
        router = {"name": "router", "network": f"{P}/global/networks/{network}", "nats": [body]}
        client.ok("POST", f"{COMPUTE}/regions/{place}/routers", router)


NOTHING_AT_ALL, GOOGLE, ALL = (False, False), (False, True), (True, True)


@pytest.mark.parametrize(
    ("egress", "access", "nat", "reached"),
    [
        ("ALL_TRAFFIC", False, None, NOTHING_AT_ALL),
        ("ALL_TRAFFIC", True, None, GOOGLE),
        ("ALL_TRAFFIC", False, nat_of(None), ALL),
        ("ALL_TRAFFIC", False, nat_of(PRIMARY), ALL),
        ("ALL_TRAFFIC", False, nat_of(SECONDARY), NOTHING_AT_ALL),
        ("ALL_TRAFFIC", False, nat_of(PRIMARY, name="else"), NOTHING_AT_ALL),
        ("ALL_TRAFFIC", True, nat_of(None, region=OTHER), GOOGLE),
        ("ALL_TRAFFIC", True, nat_of(None, network="default"), GOOGLE),
        ("ALL_TRAFFIC", True, nat_of(None, type="PRIVATE"), GOOGLE),
        ("PRIVATE_RANGES_ONLY", False, None, ALL),
        (None, False, None, ALL),
    ],
)
def test_an_instance_with_all_traffic_reaches_what_nat_and_private_google_access_open(
    own_cloud, own_client, *, egress, access, nat, reached
):
    network_of(own_client, access, nat)
    interface = {"networkInterfaces": [{"network": "vpc", "subnetwork": "sub"}]}
    own_client.ok("POST", "/storage/storage/v1/b", {"name": "weights"}, project="local-project")
    mounts = changed(PLAIN, "template.volumes", [{"name": "v", "gcs": {"bucket": "weights"}}])
    uses = changed(mounts, "template.vpcAccess", {**interface, **({"egress": egress} if egress else {})})
    operation = deploy(own_client, "uses", uses)
    seen = [(one.egress.internet, one.egress.google) for one in own_cloud.cloud.runtimes.revisions.specs]
    assert seen == ([reached] if reached[1] else [])
    assert ("error" in operation) is not reached[1]


@pytest.mark.parametrize(
    ("access", "nat", "external", "reached"),
    [
        (False, None, False, NOTHING_AT_ALL),
        (True, None, False, GOOGLE),
        (False, nat_of(None, region="europe-west4"), False, ALL),
        (False, None, True, ALL),
    ],
)
def test_a_tpu_vm_reaches_what_nat_private_google_access_and_an_external_address_open(
    own_cloud, own_client, *, access, nat, external, reached
):
    network_of(own_client, access, nat, region="europe-west4")
    zone = f"{P}/locations/europe-west4-a"
    config = {"network": "vpc", "subnetwork": "sub", "enableExternalIps": external}
    node = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e", "networkConfig": config}
    spec = {"parent": zone, "nodeId": "node", "node": node}
    body = {"tpu": {"nodeSpec": [spec]}, "spot": {}}
    own_client.ok("POST", f"/tpu/v2alpha1/{zone}/queuedResources", body, queuedResourceId="queued")
    own_client.ok("GET", f"/tpu/v2alpha1/{zone}/queuedResources/queued")
    (machine,) = own_cloud.cloud.runtimes.machines.machines.values()
    assert (machine.egress.internet, machine.egress.google) == reached
