"""A network without external addresses: Private Google Access, SSH through a tunnel, and egress only if needed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from components import gcp
from contracts.labels import Ownership

IAP_RANGE = "35.235.240.0/20"
"""Source addresses of Identity-Aware Proxy's TCP forwarding (Google Cloud, IAP documentation)."""

SSH_PORT = "22"
HTTPS_PORT = "443"
"""Port of all Google APIs, including images, logs and metrics."""
HTTP_PORT = "80"
"""Port of the Ubuntu package archives, whose content is signed."""
EVERYWHERE = "0.0.0.0/0"
LAST_PRIORITY = 65534
"""Just before the implied rule that allows all egress, so any other rule of the network takes precedence."""


FIRST_BLOCK, BLOCKS = 65, 63
"""Subnets are in 10.65.0.0 to 10.127.255.255: above those of earlier releases, below the ranges of automatic networks (10.128.0.0/9)."""


def subnet_range(region: str) -> str:
    """Return the range of a region's subnet, 256 addresses: constant per region, and different for any two Google regions."""
    number = int(hashlib.sha256(region.encode()).hexdigest(), 16) % (BLOCKS * 256)
    return f"10.{FIRST_BLOCK + number // 256}.{number % 256}.0/24"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateNetworkArgs:
    """A network and its subnets."""

    project: str
    name: str
    """Name of the network, and of each of its subnets, routers and NATs."""
    regions: Sequence[str]
    """Regions with a subnet. Their order is irrelevant, because a subnet's range depends only on its region."""
    ownership: Ownership
    target_tag: str
    """Network tag of the machines that allow SSH."""
    internet_egress: bool
    """Add Cloud NAT. Without it machines cannot reach the Hugging Face hub; Google's APIs and Artifact Registry need no NAT."""
    allow_iap: bool
    """Allow SSH from Identity-Aware Proxy. The tunnel needs it."""
    egress_ports: Sequence[str] | None = None
    """TCP ports that machines with `target_tag` may connect to, or None for all. The machine's metadata server, with DNS and NTP, is always
    reachable (Google Cloud, "VPC firewall rules", always allowed traffic)."""


class PrivateNetwork(pulumi.ComponentResource):
    """One network, one subnet per region with Private Google Access, SSH only from Identity-Aware Proxy, and optional NAT.

    All subnets have the same name, so one name finds the subnet of any region.
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
            gcp.compute.NetworkArgs(
                name=args.name,
                project=args.project,
                auto_create_subnetworks=False,
                description=args.ownership.description,
            ),
            child,
        )
        self.network = network.id
        self.subnetwork_name = args.name
        self.ready = [self._subnet(name, args, network, region, child) for region in args.regions]
        if args.allow_iap:
            self.ready.append(self._tunnel_rule(name, args, network, child))
        if args.egress_ports is not None:
            self.ready.append(self._egress_rules(name, args, args.egress_ports, network, child))
        if args.internet_egress:
            self.ready.extend(self._nat(name, args, network, region, child) for region in args.regions)
        self.register_outputs({"network": self.network})

    @staticmethod
    def _subnet(
        name: str, args: PrivateNetworkArgs, network: gcp.compute.Network, region: str, child: pulumi.ResourceOptions
    ) -> pulumi.Resource:
        properties = gcp.compute.SubnetworkArgs(
            name=args.name,
            project=args.project,
            region=region,
            network=network.id,
            ip_cidr_range=subnet_range(region),
            # Without it a machine without an external address can pull neither the image nor the weights.
            private_ip_google_access=True,
            description=args.ownership.description,
        )
        # Earlier releases used 10.64.N.0/24 for the region at position N. A subnet keeps its range, because a new range would replace it.
        keeps_range = pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(ignore_changes=["ipCidrRange"]))
        return gcp.compute.Subnetwork(f"{name}-{region}", properties, keeps_range)

    @staticmethod
    def _tunnel_rule(
        name: str, args: PrivateNetworkArgs, network: gcp.compute.Network, child: pulumi.ResourceOptions
    ) -> pulumi.Resource:
        properties = gcp.compute.FirewallArgs(
            name=f"{args.name}-iap",
            project=args.project,
            network=network.id,
            direction="INGRESS",
            priority=1000,
            # SSH only, because the tunnel ends at the machine's loopback address, where the server listens.
            allows=[gcp.compute.FirewallAllowArgs(protocol="tcp", ports=[SSH_PORT])],
            source_ranges=[IAP_RANGE],
            target_tags=[args.target_tag],
            description=args.ownership.description,
        )
        return gcp.compute.Firewall(f"{name}-iap", properties, child)

    @staticmethod
    def _egress_rules(
        name: str,
        args: PrivateNetworkArgs,
        ports: Sequence[str],
        network: gcp.compute.Network,
        child: pulumi.ResourceOptions,
    ) -> pulumi.Resource:
        """Allow these ports, then deny the rest. Google's default domains have no fixed addresses, so the rule does not restrict destinations."""

        def rule(suffix: str, priority: int) -> gcp.compute.FirewallArgs:
            return gcp.compute.FirewallArgs(
                name=f"{args.name}-{suffix}",
                project=args.project,
                network=network.id,
                direction="EGRESS",
                priority=priority,
                destination_ranges=[EVERYWHERE],
                target_tags=[args.target_tag],
                description=args.ownership.description,
            )

        allowed, denied = rule("egress", 1000), rule("no-egress", LAST_PRIORITY)
        allowed.allows = [gcp.compute.FirewallAllowArgs(protocol="tcp", ports=list(ports))]
        denied.denies = [gcp.compute.FirewallDenyArgs(protocol="all")]
        allow = gcp.compute.Firewall(f"{name}-egress", allowed, child)
        # A running machine must stay connected to Google while the rules are created.
        after_allow = pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(depends_on=[allow]))
        return gcp.compute.Firewall(f"{name}-no-egress", denied, after_allow)

    @staticmethod
    def _nat(
        name: str, args: PrivateNetworkArgs, network: gcp.compute.Network, region: str, child: pulumi.ResourceOptions
    ) -> pulumi.Resource:
        described = gcp.compute.RouterArgs(
            name=args.name,
            project=args.project,
            region=region,
            network=network.id,
            description=args.ownership.description,
        )
        router = gcp.compute.Router(f"{name}-{region}", described, child)
        properties = gcp.compute.RouterNatArgs(
            name=args.name,
            project=args.project,
            region=region,
            router=router.name,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
        )
        return gcp.compute.RouterNat(f"{name}-{region}", properties, child)
