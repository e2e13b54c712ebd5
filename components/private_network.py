"""A network without external addresses: Private Google Access, SSH through a tunnel, and egress only if the stack needs it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from contracts.labels import Ownership

IAP_RANGE = "35.235.240.0/20"
"""Source addresses of Identity-Aware Proxy's TCP forwarding (Google Cloud, IAP documentation)."""

SSH_PORT = "22"


FIRST_BLOCK, BLOCKS = 65, 63
"""Subnets lie in 10.65.0.0 to 10.127.255.255: above those of earlier releases, below the ranges of automatic networks (10.128.0.0/9)."""


def subnet_range(region: str) -> str:
    """Return the range of a region's subnet, 256 addresses: always the same for a region, and different for any two regions of Google's."""
    number = int(hashlib.sha256(region.encode()).hexdigest(), 16) % (BLOCKS * 256)
    return f"10.{FIRST_BLOCK + number // 256}.{number % 256}.0/24"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateNetworkArgs:
    """A network and its subnets."""

    project: str
    name: str
    """Name of the network, and of each of its subnets, routers and NATs."""
    regions: Sequence[str]
    """Regions with a subnet. Their order means nothing: a subnet's range follows from its region."""
    ownership: Ownership
    target_tag: str
    """Network tag of the machines that SSH is allowed to."""
    internet_egress: bool
    """Add Cloud NAT. Without it machines cannot reach the Hugging Face hub; Google's APIs and Artifact Registry need no NAT."""
    allow_iap: bool
    """Allow SSH from Identity-Aware Proxy. Without it nobody can open the tunnel."""


class PrivateNetwork(pulumi.ComponentResource):
    """One network, one subnet per region with Private Google Access, SSH from Identity-Aware Proxy only, and NAT on request.

    All subnets have the same name, so that one name finds the subnet of any region.
    """

    network: pulumi.Output[str]
    """projects/P/global/networks/N."""
    subnetwork_name: str
    ready: list[pulumi.Resource]
    """Resources that must exist before a machine boots."""

    def __init__(self, name: str, args: PrivateNetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gemma-serving:index:PrivateNetwork", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        network = gcp.compute.Network(
            name,
            name=args.name,
            project=args.project,
            auto_create_subnetworks=False,
            description=args.ownership.description,
            opts=child,
        )
        self.network = network.id
        self.subnetwork_name = args.name
        self.ready = [self._subnet(name, args, network, region, child) for region in args.regions]
        if args.allow_iap:
            self.ready.append(self._tunnel_rule(name, args, network, child))
        if args.internet_egress:
            self.ready.extend(self._nat(name, args, network, region, child) for region in args.regions)
        self.register_outputs({"network": self.network})

    @staticmethod
    def _subnet(
        name: str, args: PrivateNetworkArgs, network: gcp.compute.Network, region: str, child: pulumi.ResourceOptions
    ) -> pulumi.Resource:
        return gcp.compute.Subnetwork(
            f"{name}-{region}",
            name=args.name,
            project=args.project,
            region=region,
            network=network.id,
            ip_cidr_range=subnet_range(region),
            # Without it a machine without an external address can pull neither image nor weights.
            private_ip_google_access=True,
            description=args.ownership.description,
            # Earlier releases gave 10.64.N.0/24 to the region at position N. A subnet keeps its range: another would replace it.
            opts=pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(ignore_changes=["ipCidrRange"])),
        )

    @staticmethod
    def _tunnel_rule(
        name: str, args: PrivateNetworkArgs, network: gcp.compute.Network, child: pulumi.ResourceOptions
    ) -> pulumi.Resource:
        return gcp.compute.Firewall(
            f"{name}-iap",
            name=f"{args.name}-iap",
            project=args.project,
            network=network.id,
            direction="INGRESS",
            priority=1000,
            # SSH only: the tunnel ends at the machine's loopback address, where the server listens.
            allows=[gcp.compute.FirewallAllowArgs(protocol="tcp", ports=[SSH_PORT])],
            source_ranges=[IAP_RANGE],
            target_tags=[args.target_tag],
            description=args.ownership.description,
            opts=child,
        )

    @staticmethod
    def _nat(
        name: str, args: PrivateNetworkArgs, network: gcp.compute.Network, region: str, child: pulumi.ResourceOptions
    ) -> pulumi.Resource:
        router = gcp.compute.Router(
            f"{name}-{region}",
            name=args.name,
            project=args.project,
            region=region,
            network=network.id,
            description=args.ownership.description,
            opts=child,
        )
        return gcp.compute.RouterNat(
            f"{name}-{region}",
            name=args.name,
            project=args.project,
            region=region,
            router=router.name,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
            opts=child,
        )
