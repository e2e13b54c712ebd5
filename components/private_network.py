"""A network without external addresses: Private Google Access, a tunnel for people, and egress only where something needs it."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from components.ownership import Ownership

IAP_RANGE = "35.235.240.0/20"
"""Where Identity-Aware Proxy's TCP forwarding comes from (Google Cloud, IAP documentation)."""

SSH_PORT = "22"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateNetworkArgs:
    """`regions` in order; subnets get 10.64.N.0/24.

    `internet_egress` adds Cloud NAT: needed to reach the Hugging Face hub, not for Google's APIs or Artifact Registry.
    """

    project: str
    name: str
    regions: Sequence[str]
    ownership: Ownership
    target_tag: str
    internet_egress: bool
    allow_iap: bool


class PrivateNetwork(pulumi.ComponentResource):
    """One network, one subnet a region with Private Google Access, SSH from Identity-Aware Proxy alone, NAT where asked for.

    All subnets have the same name, so that whatever names a subnet finds the one of its own region.
    """

    network: pulumi.Output[str]
    """projects/P/global/networks/N."""
    subnetwork_name: str
    ready: list[pulumi.Resource]
    """What has to be there before a machine boots."""

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
        self.ready = [self._subnet(name, args, network, index, child) for index in range(len(args.regions))]
        if args.allow_iap:
            self.ready.append(self._tunnel_rule(name, args, network, child))
        if args.internet_egress:
            self.ready.extend(self._nat(name, args, network, region, child) for region in args.regions)
        self.register_outputs({"network": self.network})

    @staticmethod
    def _subnet(
        name: str, args: PrivateNetworkArgs, network: gcp.compute.Network, index: int, child: pulumi.ResourceOptions
    ) -> pulumi.Resource:
        region = args.regions[index]
        return gcp.compute.Subnetwork(
            f"{name}-{region}",
            name=args.name,
            project=args.project,
            region=region,
            network=network.id,
            ip_cidr_range=f"10.64.{index}.0/24",
            # Without it a machine that has no external address can pull neither image nor weights.
            private_ip_google_access=True,
            description=args.ownership.description,
            opts=child,
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
            # SSH only: the server's port is reached through the tunnel, on the machine's own loopback address.
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
