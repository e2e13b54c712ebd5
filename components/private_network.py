"""A network without external addresses: Private Google Access, SSH through a tunnel, and egress only if needed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.checks import Owner, arguments, program_ownership, require_valid
from gemma_serving.planning.settings import text
from gemma_serving.planning.settings.annotations import DISTINCT
from gemma_serving.planning.settings.fields import Block

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
"""Subnets are in 10.65.0.0 to 10.127.255.255: below the ranges of automatic networks (10.128.0.0/9)."""


def subnet_range(region: str) -> str:
    """Return the range of a region's subnet, 256 addresses: constant per region, and different for any two Google regions."""
    number = int(hashlib.sha256(region.encode()).hexdigest(), 16) % (BLOCKS * 256)
    return f"10.{FIRST_BLOCK + number // 256}.{number % 256}.0/24"


@arguments
class PrivateNetworkArgs(Block):
    """A network and its subnets."""

    project: text.ProjectId
    name: text.NetworkName
    """Name of the network, and of each of its subnets, routers and NATs."""
    regions: Annotated[Sequence[text.Region], DISTINCT]
    """Regions with a subnet. Their order is irrelevant, because a subnet's range depends only on its region."""
    target_tag: text.ResourceName
    """Network tag of the TPU VMs that allow SSH."""
    ownership: Owner = field(default_factory=program_ownership)
    """Owner in the descriptions. Default: the project and stack of the running program."""
    internet_egress: bool = True
    """Add Cloud NAT, which TPU VMs need for the Hugging Face hub, but not for Google's APIs and Artifact Registry."""
    allow_iap: bool = True
    """Allow SSH from Identity-Aware Proxy. The tunnel needs it."""
    egress_ports: Annotated[Sequence[text.PortText], DISTINCT] | None = None
    """TCP ports that TPU VMs may connect to. None: all. The metadata server, DNS and NTP are always reachable."""
    # Google Cloud, "VPC firewall rules": always allowed traffic.


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
        require_valid(f'PrivateNetwork "{name}"', args, PrivateNetworkArgs)
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
        rules = _Rules(name=name, args=args, network=network.id, options=child)
        if args.allow_iap:
            self.ready.append(rules.tunnel())
        if args.egress_ports is not None:
            self.ready.append(rules.egress(args.egress_ports))
        if args.internet_egress:
            self.ready.extend(self._nat(name, args, network, region, child) for region in args.regions)
        self.register_outputs({"network": self.network})

    def _subnet(
        self,
        name: str,
        args: PrivateNetworkArgs,
        network: "gcp.compute.Network",
        region: str,
        child: pulumi.ResourceOptions,
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
        return gcp.compute.Subnetwork(f"{name}-{region}", properties, child)

    @staticmethod
    def _nat(
        name: str, args: PrivateNetworkArgs, network: "gcp.compute.Network", region: str, child: pulumi.ResourceOptions
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """Firewall rules for the TPU VMs with a tag."""

    name: str
    args: PrivateNetworkArgs
    network: pulumi.Input[str]
    options: pulumi.ResourceOptions

    def tunnel(self) -> pulumi.Resource:
        # SSH only, because the tunnel leads to the TPU VM's loopback address, on which the server listens.
        allowed = self._rule("iap", "INGRESS", 1000)
        allowed.allows = [gcp.compute.FirewallAllowArgs(protocol="tcp", ports=[SSH_PORT])]
        allowed.source_ranges = [IAP_RANGE]
        return gcp.compute.Firewall(f"{self.name}-iap", allowed, self.options)

    def egress(self, ports: Sequence[str]) -> pulumi.Resource:
        """Allow these ports, then deny the rest. Google's default domains have no fixed addresses, so the rule does not restrict destinations."""
        allowed, denied = self._rule("egress", "EGRESS", 1000), self._rule("no-egress", "EGRESS", LAST_PRIORITY)
        allowed.allows = [gcp.compute.FirewallAllowArgs(protocol="tcp", ports=list(ports))]
        denied.denies = [gcp.compute.FirewallDenyArgs(protocol="all")]
        for each in (allowed, denied):
            each.destination_ranges = [EVERYWHERE]
        allow = gcp.compute.Firewall(f"{self.name}-egress", allowed, self.options)
        # A running machine must stay connected to Google while the rules are created.
        after_allow = pulumi.ResourceOptions.merge(self.options, pulumi.ResourceOptions(depends_on=[allow]))
        return gcp.compute.Firewall(f"{self.name}-no-egress", denied, after_allow)

    def _rule(self, suffix: str, direction: str, priority: int) -> "gcp.compute.FirewallArgs":
        # In quotes, as every annotation of gcp.compute here: it loads the module, which is 4.8 MB, in stacks without a network too.
        return gcp.compute.FirewallArgs(
            name=f"{self.args.name}-{suffix}",
            project=self.args.project,
            network=self.network,
            direction=direction,
            priority=priority,
            target_tags=[self.args.target_tag],
            description=self.args.ownership.description,
        )
