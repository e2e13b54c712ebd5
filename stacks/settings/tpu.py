"""A TPU queued resource, or an instance of Compute Engine with TPU chips, and its network."""

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from planning.machine.hardware import COMPUTE_MAX_WAIT_S, MACHINE_TYPES
from planning.question.types import CapacityApiName, ProvisioningModel, SshAccess
from stacks.settings.block import Block, Judged, OnChange
from stacks.settings.text import AcceleratorType, Member, Network, Subnetwork, TunnelRole, Zone
from stacks.units import DurationS


class ExistingNetworkSettings(Block):
    """A network that exists already. The stack reads it and never changes it."""

    network: Network
    """Name or self link of the network. Its firewall must admit SSH from Identity-Aware Proxy (35.235.240.0/20) for the tunnel."""
    subnetwork: Subnetwork
    """Name or self link of the subnetwork, in the region of the zones. With weights hub it needs Cloud NAT."""
    private_google_access: Annotated[bool, Judged("tpu.private_google_access"), OnChange("nothing")]
    """Whether the subnetwork has Private Google Access. Without it the VM can pull neither image nor weights."""


def _compile_cache_of_today(value: object) -> object:
    """Return the word for what releases before the disk called memory."""
    return "machine" if value == "memory" else value


class TpuSettings(Block):
    """A TPU queued resource: capacity, and how long to wait for it."""

    accelerator_type: Annotated[AcceleratorType, Judged("accelerator"), OnChange("capacity")]
    """Slice. It must be one host: 8 chips at most."""
    zones: Annotated[list[Zone], Field(min_length=1), Judged("tpu.zones"), OnChange("update")]
    """Zones in order of preference. Before trying the next zone, the provider deletes its request in the current one."""
    api: Annotated[CapacityApiName, Judged("tpu.api"), OnChange("capacity")] = "cloud-tpu"
    """Google's API that gives the capacity. compute-engine makes a v6e instance instead of a queued resource; Google develops only that API further."""
    provisioning: Annotated[ProvisioningModel, Judged("tpu.provisioning_model"), OnChange("capacity")] = "flex-start"
    """How capacity is bought. flex-start waits in a queue and ends after `maxRunDuration`. Google can take spot back at any time."""
    reservation: Annotated[str | None, OnChange("capacity")] = None
    """Name of the reservation. Required with provisioning reservation, refused otherwise."""
    max_run_duration_s: Annotated[DurationS | None, Judged("tpu.max_run_duration_s"), OnChange("capacity")] = Field(
        default=None, alias="maxRunDuration"
    )
    """Google deletes the nodes after this time."""
    wait_per_zone_s: Annotated[DurationS, OnChange("nothing")] = Field(
        default="30m", alias="waitPerZone", validate_default=True
    )
    """Longest wait for capacity in one zone. After it the provider tries the next zone."""
    wait_total_s: Annotated[DurationS | None, OnChange("nothing")] = Field(default=None, alias="waitTotal")
    """Longest wait of one `up` for capacity in all zones together. By default only `waitPerZone` limits the wait, in each zone."""
    renew_before_s: Annotated[DurationS | None, Judged("tpu.renew_before_s"), OnChange("nothing")] = Field(
        default=None, alias="renewBefore"
    )
    """From this time before the end of the run, `up` requests a second machine and changes over to it. Off by default; run `up` on a schedule."""
    wait_for: Annotated[Literal["ready", "active", "accepted"], OnChange("nothing")] = "ready"
    """What `up` waits for: the server that answers, the machine, or only Google's acceptance of the request. The next `up` goes on from there."""
    ready_timeout_s: Annotated[DurationS, OnChange("nothing")] = Field(
        default="1h", alias="readyTimeout", validate_default=True
    )
    """Longest wait of `up` for the server once capacity is there. If it is too short, `up` fails while the model still loads."""
    boot_disk_size_gb: Annotated[
        Annotated[int, Field(ge=100)] | None, Judged("tpu.boot_disk_size_gb"), OnChange("capacity")
    ] = None
    """Size of the boot disk in GB. The default is Google's 100 GB. It holds the operating system, the image and the weights."""
    runtime_version: Annotated[str | None, OnChange("capacity")] = None
    """TPU VM image. The default is that of the accelerator's generation."""
    existing_network: Annotated[ExistingNetworkSettings | None, OnChange("capacity")] = None
    """Network to use. The default is a private network of the stack."""
    compile_cache: Annotated[
        Literal["machine", "bucket", "off"],
        BeforeValidator(_compile_cache_of_today),
        Judged("tpu.compile_cache"),
        OnChange("update"),
    ] = "machine"
    """Where compiled XLA programs are kept: on the machine's disk, which survives a crash and a reboot, or archived in the stack's bucket
    too, so that a new machine starts with them. memory is an older word for machine."""
    allow_replace_active: Annotated[bool, OnChange("nothing")] = False
    """Allow a change that gives up running capacity. Without it such a change is refused."""
    ssh: Annotated[SshAccess, Judged("tpu.ssh")] = "os-login"
    """How a tunnel logs in to the machine. metadata-key is for projects or people that may not use OS Login: each SSH key in the metadata of
    the project or the machine is then root on the machine."""
    container: Literal["confined", "privileged"] = "confined"
    """What the server's container gets of the machine. confined: the accelerator's devices and two capabilities; after a device error the machine
    starts it with `--privileged` once and remembers that. privileged: the whole machine from the first start on, as in earlier releases."""
    egress: Literal["limited", "open"] = "limited"
    """Where the machine may connect to from a network of the stack. limited: port 443 if the server downloads nothing from the Hugging Face hub (with
    api compute-engine port 80 too, for the package of docker), everywhere if it does. open: everywhere. With `existingNetwork` it has no effect."""
    tunnel_members: Annotated[
        list[Member], Field(default_factory=list), Judged("tpu.tunnel_members"), OnChange("update")
    ]
    """Who may open a tunnel to the server through Identity-Aware Proxy; each gets all roles that the tunnel needs. Project owners need no entry."""
    tunnel_role: Annotated[TunnelRole | None, Judged("tpu.tunnel_role"), OnChange("update")] = None
    """Custom role that `tunnelMembers` get in place of roles/tpu.admin: its id in this project, or its full name. You create it once, and the
    stack never changes or deletes it; the doctor prints the command."""

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions of the zones in order, each once."""
        return tuple(dict.fromkeys(zone.rpartition("-")[0] for zone in self.zones))

    @field_validator("zones")
    @classmethod
    def _zones_differ(cls, zones: list[str]) -> list[str]:
        if len(set(zones)) != len(zones):
            raise ValueError("each zone can be named once")
        return zones

    @model_validator(mode="after")
    def _reservation_goes_with_provisioning(self) -> "TpuSettings":
        if (self.provisioning == "reservation") != (self.reservation is not None):
            raise ValueError("provisioning reservation needs the name of a reservation, and only it takes one")
        return self

    @model_validator(mode="after")
    def _compute_engine_has_limits(self) -> "TpuSettings":
        if self.api != "compute-engine":
            return self
        if self.accelerator_type not in MACHINE_TYPES:
            raise ValueError(
                f"api compute-engine has machine types for {', '.join(MACHINE_TYPES)} only, not for {self.accelerator_type}; "
                "choose one of them, or set api to cloud-tpu"
            )
        if self.provisioning == "reservation":
            raise ValueError(
                "api compute-engine knows no reservations here; set api to cloud-tpu, or provisioning to flex-start"
            )
        if self.provisioning == "flex-start" and self.wait_per_zone_s > COMPUTE_MAX_WAIT_S:
            raise ValueError(
                "waitPerZone is longer than the 2h that Compute Engine keeps a flex-start request; shorten it, or name more zones"
            )
        if self.runtime_version is not None and "/images/" not in self.runtime_version:
            raise ValueError(
                "runtimeVersion must name a boot image with api compute-engine, such as projects/P/global/images/family/F; leave it out for Google's"
            )
        if self.renew_before_s is not None:
            raise ValueError(
                "renewBefore renews queued resources only; leave it out with api compute-engine, or set api to cloud-tpu"
            )
        return self

    @model_validator(mode="after")
    def _a_tunnel_role_is_for_cloud_tpu(self) -> "TpuSettings":
        if self.tunnel_role is not None and self.api == "compute-engine":
            raise ValueError(
                "tunnelRole replaces roles/tpu.admin, which members get with api cloud-tpu only; leave it out with api compute-engine"
            )
        return self

    @model_validator(mode="after")
    def _renewal_ends_before_the_run(self) -> "TpuSettings":
        before_s, run_s = self.renew_before_s, self.max_run_duration_s
        if before_s is not None and (run_s is None or not 0 < before_s < run_s):
            raise ValueError(
                "renewBefore needs maxRunDuration and must be shorter; set for example renewBefore: 1h with maxRunDuration: 24h"
            )
        return self

    @model_validator(mode="after")
    def _existing_network_has_one_region(self) -> "TpuSettings":
        if self.existing_network is None:
            return self
        link = re.search(r"/regions/([^/]+)/", self.existing_network.subnetwork)
        found = dict.fromkeys((*self.regions, *(link.groups() if link else ())))
        if len(found) > 1:
            raise ValueError(
                f"existingNetwork has one subnetwork and so one region, but the zones and the subnetwork name {', '.join(found)}; "
                "keep the zones of one region"
            )
        return self
