"""Private addresses: nodes, instances and services of one subnetwork never share one."""

from dataclasses import dataclass
from typing import Any

import pytest

from localcloud.tests.conftest import Client
from localcloud.tests.idle_cloud import Started
from localcloud.tests.services.test_run_rules import PLAIN, P, changed, deploy

PLACE, ZONE = f"{P}/regions/europe-west4", f"{P}/locations/europe-west4-a"
COMPUTE = f"/compute/compute/v1/{P}"
INSTANCES, SERVICES = f"{COMPUTE}/zones/europe-west4-a/instances", f"/run/v2/{P}/locations/europe-west4/services"
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
INSTANCE: dict[str, Any] = {
    "machineType": f"{P}/zones/europe-west4-a/machineTypes/ct6e-standard-1t",
    "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "100"}}],
    "networkInterfaces": [{"network": f"{P}/global/networks/vpc", "subnetwork": f"{PLACE}/subnetworks/sub"}],
    "scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "automaticRestart": False},
}


@dataclass
class Subnetworks:
    """The network `vpc` with the subnetworks `sub` and `other`, and what uses them."""

    client: Client
    started: Started

    def add(self, name: str, block: str) -> None:
        body = {"name": name, "network": f"{P}/global/networks/vpc", "ipCidrRange": block}
        self.client.ok("POST", f"/compute/compute/v1/{PLACE}/subnetworks", body)

    def queue(self, name: str, count: int, subnetwork: str = "sub") -> None:
        node = {
            "acceleratorType": "v6e-1",
            "runtimeVersion": "v2-alpha-tpuv6e",
            "networkConfig": {"network": "vpc", "subnetwork": subnetwork},
        }
        spec = {"parent": ZONE, "multiNodeParams": {"nodeCount": count, "nodeIdPrefix": name}, "node": node}
        body = {"tpu": {"nodeSpec": [spec]}, "spot": {}}
        self.client.ok("POST", f"/tpu/v2alpha1/{ZONE}/queuedResources", body, queuedResourceId=name)

    def insert(self, name: str) -> None:
        email = self.client.ok("GET", COMPUTE)["defaultServiceAccount"]
        account = {"email": email, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
        self.client.ok("POST", INSTANCES, {**INSTANCE, "name": name, "serviceAccounts": [account]})

    def serve(self, name: str) -> None:
        egress = {"networkInterfaces": [{"network": "vpc", "subnetwork": "sub"}]}
        deploy(self.client, name, changed(PLAIN, "template.vpcAccess", egress), parent=SERVICES)

    def of_nodes(self, name: str) -> list[str]:
        found = self.client.ok("GET", f"/tpu/v2alpha1/{ZONE}/nodes").get("nodes", [])
        return [node["networkEndpoints"][0]["ipAddress"] for node in found if f"/{name}-" in node["name"]]

    def of_instances(self) -> list[str]:
        return [item["networkInterfaces"][0]["networkIP"] for item in self.client.ok("GET", INSTANCES)["items"]]

    def of_services(self) -> list[str]:
        held = [document for _, document in self.started.cloud.store.under("compute.addresses")]
        return [address for document in held for address in document["_addresses"]]


@pytest.fixture
def vpc(own_client: Client, own_cloud: Started) -> Subnetworks:
    own_client.ok("POST", f"{COMPUTE}/global/networks", {"name": "vpc", "autoCreateSubnetworks": False})
    made = Subnetworks(own_client, own_cloud)
    made.add("other", "10.80.1.0/26")
    made.add("sub", "10.80.0.0/26")
    return made


def test_nodes_instances_and_services_of_a_subnetwork_have_different_addresses(vpc: Subnetworks):
    vpc.insert("a")
    vpc.queue("first", 3)
    vpc.serve("one")
    vpc.insert("b")
    vpc.serve("two")
    vpc.queue("second", 12)
    vpc.queue("elsewhere", 1, subnetwork="other")
    users = [*vpc.of_instances(), *vpc.of_nodes("first"), *vpc.of_nodes("second"), *vpc.of_services()]
    assert len(users) == len(set(users)) == 2 + 3 + 12 + 2 * 16
    assert all(2 <= int(address.removeprefix("10.80.0.")) <= 61 for address in users)
    assert vpc.of_nodes("elsewhere") == ["10.80.1.2"]


def test_an_address_is_free_again_when_its_user_is_deleted(vpc: Subnetworks):
    """That of a service is free two hours later, as its subnetwork is."""
    vpc.insert("a")
    (first,) = vpc.of_instances()
    store, name = vpc.started.cloud.store, f"{P}/zones/europe-west4-a/instances/a"
    store.put("compute.instances", name, {**(store.get("compute.instances", name) or {}), "status": "TERMINATED"})
    vpc.insert("b")
    assert vpc.of_instances().count(first) == 1
    vpc.client.ok("DELETE", f"{INSTANCES}/a")
    assert vpc.client.call("GET", f"{INSTANCES}/a")[0] == 404
    vpc.insert("c")
    assert first in vpc.of_instances()
    assert len(set(vpc.of_instances())) == 2
    vpc.serve("one")
    held = vpc.of_services()
    vpc.client.ok("DELETE", f"{SERVICES}/one")
    vpc.serve("two")
    assert len(set(vpc.of_services())) == 2 * 16
    vpc.started.cloud.timeline.advance(7300)
    vpc.serve("three")
    assert set(held) < set(vpc.of_services())
    assert len(vpc.of_services()) == 2 * 16


def test_a_subnetwork_without_a_free_address_fails_the_request(vpc: Subnetworks):
    """A /29 has eight addresses, of which Google keeps four."""
    vpc.add("small", "10.80.2.0/29")
    vpc.queue("few", 4, subnetwork="small")
    vpc.queue("more", 1, subnetwork="small")
    state = vpc.client.ok("GET", f"/tpu/v2alpha1/{ZONE}/queuedResources/more")["state"]
    assert state["state"] == "FAILED"
    assert "IP space of" in state["failedData"]["error"]["message"]
