"""A TPU queued resource or a Compute Engine instance with TPU chips, and its network."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from gemma_serving.planning.machine.hardware import COMPUTE_MAX_WAIT_S, MIN_BOOT_DISK_GB, machine_type_of, machine_types
from gemma_serving.planning.settings.annotations import DISTINCT, LARGEST, ListOf, OnChange, WordOrList
from gemma_serving.planning.settings.capacity_form import CapacityForm, FormText, ProvisioningModel, read_form
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.text import (
    DURATION,
    AcceleratorType,
    DurationS,
    Member,
    Network,
    PositiveNumber,
    RuntimeVersion,
    Subnetwork,
    TunnelRole,
    Zone,
)
from gemma_serving.planning.settings.words import BeforeValidator, Field

CapacityApiName = Literal["cloud-tpu", "compute-engine"]
SshAccess = Literal["os-login", "metadata-key"]
CompileCache = Literal["machine", "bucket", "off"]

LEAST_IDLE_S: Final = 600
"""Minimum of `idleAfter`: far above the interval of the TPU VM's reports, so a short gap between requests is not idle time."""


_ZONE_OF_RESERVATION: Final = re.compile(r"/(?:locations|zones)/([^/]+)/reservations/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingNetworkSettings(Block):
    """An existing network. The stack reads it and never changes it."""

    network: Network
    """Name or self link of the network.

    For the tunnel, its firewall must allow SSH from Identity-Aware Proxy (35.235.240.0/20).
    """
    subnetwork: Subnetwork
    """Name or self link of the subnetwork, in the region of the zones.

    It needs Cloud NAT if the server downloads from the Hugging Face hub.
    """
    private_google_access: Annotated[bool, OnChange("nothing")]
    """True if the subnetwork has Private Google Access.

    Without it, the TPU VM can pull neither the image nor the weights.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuSettings(Block):
    """A TPU queued resource: capacity, and how long to wait for it."""

    accelerator_type: Annotated[AcceleratorType, OnChange("capacity")]
    """Slice of a single host, with at most 8 chips."""
    zones: Annotated[ListOf[Zone], DISTINCT, OnChange("update")]
    """Zones in order of preference.

    The provider deletes its request in one zone before it tries the next.
    """
    api: Annotated[CapacityApiName, OnChange("capacity")] = "cloud-tpu"
    """Google API for the capacity.

    `compute-engine` creates a v6e instance instead of a queued resource. Google adds new features to that API only.
    """
    provisioning: Annotated[
        ListOf[FormText], DISTINCT, BeforeValidator(WordOrList("spot:5m")), OnChange("capacity")
    ] = ("flex-start",)
    """Form of capacity, or a list of forms in order of preference.

    The forms are `flex-start`, `spot`, `standard` and `reservation` (docs/capacity.md). With `[flex-start:30m, spot:5m, standard]`, `up`
    requests the first form in all zones, then the next, each for the time after the colon. `flex-start` waits in a queue and expires after
    `maxRunDuration`. Google can reclaim `spot` capacity at any time. A change of a list never touches capacity in use.
    """
    max_usd_per_hour: Annotated[PositiveNumber | None, OnChange("nothing")] = None
    """Maximum price of the slice per hour, in US dollars.

    A form is not requested in a zone where it costs more, or where its price is unknown.
    """
    reservation: Annotated[str | None, OnChange("capacity")] = None
    """Name of the reservation. Required with provisioning reservation, otherwise rejected."""
    max_run_duration_s: Annotated[DurationS | None, OnChange("capacity")] = None
    """Google deletes the TPU VM after this time. On the Cloud TPU API it applies to flex-start only."""
    wait_per_zone_s: Annotated[DurationS, OnChange("nothing")] = 1_800
    """Maximum wait for capacity in one zone, before the provider tries the next zone."""
    wait_total_s: Annotated[DurationS | None, OnChange("nothing")] = None
    """Maximum wait of one `up` for capacity in all zones together. Default: no limit except `waitPerZone` in each zone."""
    idle_after_s: Annotated[
        Annotated[int, Field(ge=LEAST_IDLE_S), BeforeValidator(DURATION)] | None, OnChange("update")
    ] = None
    """Time without a request after which `gemma teardown --all --over-limit` tears the stack down, at least 10m. Default: off.

    The TPU VM measures the time with the server's counters.
    """
    wait_for: Annotated[Literal["ready", "active", "accepted"], OnChange("nothing")] = "ready"
    """Goal of the wait of `up`: the ready server, the TPU VM, or only Google's acceptance of the request.

    The next `up` continues from there.
    """
    ready_timeout_s: Annotated[DurationS, OnChange("nothing")] = 3_600
    """Maximum wait of `up` for the server once capacity is available.

    If it is too short, `up` fails while the model is still loading.
    """
    boot_disk_size_gb: Annotated[
        Annotated[int, Field(ge=MIN_BOOT_DISK_GB, le=LARGEST)] | None, OnChange("capacity")
    ] = None
    """Size of the boot disk in GB, for the system, the image and the weights. Default: Google's 100 GB."""
    runtime_version: Annotated[RuntimeVersion | None, OnChange("capacity")] = None
    """TPU VM image. Default: the image for the accelerator's generation."""
    existing_network: Annotated[ExistingNetworkSettings | None, OnChange("capacity")] = None
    """Existing network, which the stack never changes. Default: a private network of the stack."""
    compile_cache: Annotated[CompileCache | None, OnChange("update")] = None
    """Storage of compiled XLA programs. Default: `bucket` with flex-start, spot or maxRunDuration and no `bucket.existing`, otherwise `machine`.

    `machine` stores programs on the TPU VM's disk, where they survive a crash and a reboot. `bucket` also archives them in the stack's
    bucket, so a new TPU VM starts with them. With `bucket.existing`, programs are archived only if you set `bucket` here (SEC08).
    """
    allow_replace_active: Annotated[bool, OnChange("nothing")] = False
    """Allow a change that releases running capacity. By default such a change is rejected."""
    ssh: SshAccess = "os-login"
    """Login method of the tunnel.

    Use `metadata-key` if OS Login is not allowed for a project or user. Then each SSH key in the metadata of the project or the TPU VM has
    root access to the TPU VM.
    """
    container: Literal["confined", "privileged"] = "confined"
    """Access of the server's container to the TPU VM.

    `confined` allows the accelerator's devices and two capabilities. `privileged` allows the whole TPU VM, for a server that cannot use the
    accelerator when confined.
    """
    egress: Literal["limited", "open"] = "limited"
    """Egress of the TPU VM from a network of the stack. No effect with `existingNetwork`.

    `limited` allows port 443 if the server downloads nothing from the Hugging Face hub, otherwise everything. With api compute-engine,
    `limited` also allows port 80, for the docker package. `open` allows everything.
    """
    tunnel_members: Annotated[ListOf[Member], OnChange("update")] = ()
    """Members that can open a tunnel to the server through Identity-Aware Proxy.

    Each member gets all roles for the tunnel. Project owners need no entry.
    """
    tunnel_role: Annotated[TunnelRole | None, OnChange("update")] = None
    """Custom role for `tunnelMembers` instead of roles/tpu.admin: its id in this project, or its full name.

    You create the role once, with a command that `gemma doctor` prints. The stack never changes or deletes it.
    """

    def with_defaults(self, *, has_own_bucket: bool) -> "TpuSettings":
        """Return the same with a value for `compile_cache`.

        Google ends flex-start and spot, so each run has a new TPU VM, which must not compile again. In a bucket that the stack did not create,
        other writers can delete archives (SEC08).
        """
        ends = self.has_form("flex-start") or self.has_form("spot") or self.max_run_duration_s is not None
        return replace(self, compile_cache=self.compile_cache or ("bucket" if ends and has_own_bucket else "machine"))

    @property
    def forms(self) -> tuple[CapacityForm, ...]:
        """Forms of capacity in order of preference, at least one."""
        return tuple(map(read_form, self.provisioning))

    @property
    def provisioning_text(self) -> str:
        """Forms of capacity as the file has them: one word, or a list in brackets."""
        listed = ", ".join(self.provisioning)
        return listed if len(self.provisioning) == 1 else f"[{listed}]"

    @property
    def has_order(self) -> bool:
        """True if a request can have another form, or is limited by a price."""
        return len(self.provisioning) > 1 or self.max_usd_per_hour is not None or self.forms[0].wait_s is not None

    def has_form(self, model: ProvisioningModel) -> bool:
        """Return whether the order has a provisioning model."""
        return any(form.model == model for form in self.forms)

    @property
    def private_google_access(self) -> bool | None:
        """True if an existing subnetwork has Private Google Access; None if the stack creates the network."""
        return None if self.existing_network is None else self.existing_network.private_google_access

    @property
    def regions(self) -> tuple[str, ...]:
        """Distinct regions of the zones, in order."""
        return tuple(dict.fromkeys(zone.rpartition("-")[0] for zone in self.zones))

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys of the block, and what to change."""
        if self.has_form("reservation") != (self.reservation is not None):
            yield "provisioning reservation and the key reservation require each other; set both or neither"
        place = _ZONE_OF_RESERVATION.search(self.reservation or "")
        if place and set(self.zones) != {place[1]}:
            yield f"reservation is in {place[1]}, but zones are {', '.join(self.zones)}; set zones: [{place[1]}]"
        yield from self._order_problems()
        if self.api == "compute-engine":
            yield from self._not_on_compute_engine()
        idle_s, run_s = self.idle_after_s, self.max_run_duration_s
        if idle_s is not None and run_s is not None and idle_s >= run_s:
            yield "idleAfter must be shorter than maxRunDuration, or the run ends first; shorten it or remove it"
        if self.existing_network is not None:
            link = re.search(r"/regions/([^/]+)/", self.existing_network.subnetwork)
            found = dict.fromkeys((*self.regions, *(link.groups() if link else ())))
            if len(found) > 1:
                yield (
                    f"existingNetwork allows one region, but the zones and the subnetwork are in {', '.join(found)}; "
                    "remove the zones of other regions"
                )

    def _order_problems(self) -> Iterator[str]:
        models = [form.model for form in self.forms]
        if not models:
            yield "provisioning is empty; list a form, such as flex-start"
        if len(set(models)) != len(models):
            yield "provisioning has duplicates; list each form once"
        if self.has_form("reservation") and self.has_order:
            yield (
                "provisioning reservation is paid for without a request, so it allows no other form, no wait and no maxUsdPerHour; "
                "set provisioning: reservation alone"
            )
        if any(form.wait_s == 0 for form in self.forms):
            yield "a wait in provisioning must be above 0s; set for example spot:5m"

    def _not_on_compute_engine(self) -> Iterator[str]:
        if self.accelerator_type and not machine_type_of(self.accelerator_type):
            yield (
                f"api compute-engine does not support {self.accelerator_type}; set acceleratorType to one of {', '.join(machine_types())}, "
                "or set api to cloud-tpu"
            )
        if self.has_form("reservation"):
            yield "api compute-engine does not support reservations here; set api to cloud-tpu or provisioning to flex-start"
        if self.has_form("flex-start") and self.wait_per_zone_s > COMPUTE_MAX_WAIT_S:
            yield "waitPerZone exceeds 2h, the time that Compute Engine keeps a flex-start request; shorten it or add zones"
        if self.runtime_version is not None and "/images/" not in self.runtime_version:
            yield "with api compute-engine runtimeVersion must be a boot image such as projects/P/global/images/family/F; remove it to use Google's default"
        if self.tunnel_role is not None:
            yield "tunnelRole replaces roles/tpu.admin, which members get with api cloud-tpu only; remove it with api compute-engine"
