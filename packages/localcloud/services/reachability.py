"""Destination of a Cloud Run instance's connection: at a machine of its network (Direct VPC egress).

Sources: docs.cloud.google.com/run/docs/configuring/vpc-direct-vpc and docs.cloud.google.com/firewall/docs/firewalls, 2026-11.
"""

import ipaddress
from typing import TypeAlias

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.errors import CloudError
from localcloud.services import networks, tpu_requests
from localcloud.world.cloud import Cloud
from localcloud.world.runtime import RevisionSpec

Address: TypeAlias = tuple[str, int]
_PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
"""The ranges that `egress: PRIVATE_RANGES_ONLY` sends to the network and in which subnetworks are usual."""


def service_host(cloud: Cloud, service: str) -> str:
    """Return the host name of a service's deterministic URL, SERVICE-PROJECT_NUMBER.REGION.run.app."""
    _, project, _, region, _, short = service.split("/")
    return f"{short}-{cloud.project_number(project)}.{region}.run.app"


def address(cloud: Cloud, revision: RevisionSpec, host: str, port: int) -> Address | None:
    """Return the destination on this machine of a revision's connection to an IPv4 address. None: its packets are dropped on the way.

    Raises ConnectionRefusedError if a machine refuses it because its server listens on the loopback address only.
    """
    access = part(dict(revision.template), "vpcAccess")
    if access.get("egress") != "ALL_TRAFFIC" and not any(ipaddress.ip_address(host) in block for block in _PRIVATE):
        return None
    for interface in parts(access, "networkInterfaces"):
        network, source = _joined(cloud, revision.service, interface)
        found = _machine(cloud, network, host)
        if found is None or source is None:
            return None
        if not networks.allows_egress(cloud, network, strings(interface, "tags"), port):
            return None
        name, tags, account = found
        if not networks.allows_ingress(cloud, network, source, tags=tags, account=account, port=port):
            return None
        return cloud.runtimes.machines.interface(name, port)
    return None


def _joined(cloud: Cloud, service: str, interface: JsonObject) -> tuple[str, ipaddress.IPv4Network | None]:
    """Return the network of Direct VPC egress and the range of its subnetwork, which by default has the network's name."""
    _, project, _, region, *_ = service.split("/")
    network, subnetwork = interface.get("network"), interface.get("subnetwork")
    try:
        *_, last = networks.resolve_pair(cloud, project, region, network, subnetwork or str(network).rpartition("/")[2])
    except CloudError:
        return "", None
    document = cloud.store.get(networks.SUBNETWORKS, last) or {}
    return str(document["network"]), ipaddress.IPv4Network(document["ipCidrRange"])


def _machine(cloud: Cloud, network: str, host: str) -> tuple[str, list[str], str] | None:
    """Return name, network tags and account of the machine with a private address in a network."""
    for name, node in cloud.store.under("tpu.nodes"):
        if host in {item["ipAddress"] for item in parts(node, "networkEndpoints")} and _is_in(cloud, node, network):
            return name, strings(node, "tags"), tpu_requests.account_of(cloud, name.split("/")[1], node)
    for name, instance in cloud.store.under("compute.instances"):
        addresses = {item.get("networkIP") for item in parts(instance, "networkInterfaces")}
        if host in addresses and _is_in(cloud, instance, network):
            accounts = [str(item.get("email")) for item in parts(instance, "serviceAccounts")]
            return name, strings(part(instance, "tags"), "items"), accounts[0] if accounts else ""
    return None


def _is_in(cloud: Cloud, machine: JsonObject, network: str) -> bool:
    """Return whether a machine is in a network, by the network's name or by its subnetwork's."""
    used = strings(machine, "_networks")
    return network in used or any(
        (cloud.store.get(networks.SUBNETWORKS, name) or {}).get("network") == network for name in used
    )
