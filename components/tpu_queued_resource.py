"""TPU capacity as a queued resource, and its server: a document in the node's metadata, which the provider patches in place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pulumi

from components.gcp_tpu import QueuedResource, QueuedResourceArgs, ReadyArgs, ServiceAccountArgs
from components.startup_script import startup_script
from contracts.collector import COLLECTOR_METADATA_KEY
from contracts.compile_cache import ARCHIVE_METADATA_KEY
from contracts.guest_attributes import GUEST_ATTRIBUTE_NAMESPACE
from contracts.labels import Ownership
from contracts.rollout import ENDS_AT_METADATA_KEY, ROLLOUT_METADATA_KEY, RolloutLimits
from contracts.serving_document import (
    DOCUMENT_METADATA_KEY,
    REPOSITORIES_METADATA_KEY,
    SCRIPT_METADATA_KEY,
)
from planning.machine.hardware import api_accelerator_type, image_of, machines_at_once

_CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"

_PROVISIONING_S = 1800
"""The provider's extra wait for capacity that is in PROVISIONING when `wait_per_zone_s` expires. If Google dropped the request earlier, imminent
capacity could be lost."""
_NOTICE_S = 60
"""Seconds by which the machine rejects a document before `pulumi up` times out."""
_DELETE_TIMEOUT_S = 1800
"""The provider's limit for one deletion, before the next zone and at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuQueuedResourceArgs:
    """The requested capacity, and its server."""

    project: str
    queued_resource_id: str
    """Id of the queued resource and prefix of its node's id. A change replaces the capacity."""
    zones: Sequence[str]
    """Zones in order of preference. Removing the zone in use replaces the capacity."""
    accelerator_type: str
    """Type and size of the slice, such as v6e-4. A change replaces the capacity."""
    api: str = "cloud-tpu"
    """`cloud-tpu` or `compute-engine`. A change replaces the capacity."""
    provisioning_model: str
    """`flex-start`, `spot`, `standard` or `reservation`."""
    document: pulumi.Input[str]
    """Text of the serving document. A change restarts the server in place."""
    image_repositories: Mapping[str, pulumi.Input[str]]
    """HOST/PROJECT/REPOSITORY of each region that has the document's image. A machine pulls from its own region if possible."""
    network: pulumi.Input[str]
    """projects/P/global/networks/N."""
    subnetwork: str
    """Name of a subnet that exists in the region of each zone, with Private Google Access, because the machine has no external
    address and could otherwise pull neither the image nor the weights."""
    service_account: pulumi.Input[str]
    """E-mail address of the server's account."""
    ownership: Ownership
    labels: Mapping[str, str]
    tags: Sequence[str]
    """Network tags, including the one in the tunnel's firewall rule."""
    wait_per_zone_s: int
    """Maximum wait for capacity in one zone before the provider tries the next, in seconds."""
    ready_timeout_s: int
    """Maximum wait for the server after the capacity was granted, in seconds. Then `pulumi up` fails and keeps the capacity. A changed document
    gets a minute less; then the machine rolls back to the last known good one."""
    drain_s: float = 0.0
    """Seconds for running requests to finish before a server is stopped."""
    shutdown_flag: bool = False
    """True if the image's vLLM has `--shutdown-timeout`, with which the server drains its requests itself."""
    privileged: bool = False
    """True if the server's container gets the whole machine from its first start."""
    wait_total_s: int | None = None
    """Maximum wait for capacity in all zones together, in seconds. None: only the limit of each zone applies."""
    wait_for: Literal["ready", "active", "accepted"] = "ready"
    """Goal of an update's wait: the ready server, the machine, or only the accepted request."""
    renew_before_s: int | None = None
    """Seconds before the run expires at which an update requests a second queued resource and switches to it. None: never."""
    compile_archive: pulumi.Input[str] | None = None
    """Metadata with the archive of compiled programs (contracts.compile_cache), or None."""
    collector: pulumi.Input[str] | None = None
    """Metadata with the collector of metrics (contracts.collector), or None. A change does not restart the server."""
    max_run_duration_s: int | None = None
    """Seconds after which Google deletes the nodes; flex-start requires it. A change replaces the capacity."""
    reservation_name: str | None = None
    """Name of the reservation, with `reservation`."""
    os_login: bool = True
    """True if OS Login controls logins to the machine. If not, each SSH key in the metadata of the machine or the project has root access."""
    boot_disk_size_gb: int | None = None
    """Size of the boot disk in GB. Default: Google's 100. A change replaces the capacity."""
    runtime_version: str | None = None
    """Image of the machine: a runtime version, or Compute Engine's boot image. Default: the image for the accelerator's generation."""
    next_steps: Sequence[str] = ()
    """Next steps, appended to the error if no zone grants capacity."""
    allow_replace_active: bool = False
    """Allow a change to replace capacity in use. Getting new capacity may take hours."""


class TpuQueuedResource(pulumi.ComponentResource):
    """Capacity in the first zone that grants it, with the server from the document.

    A changed document restarts the server in place. The provider rejects a change that releases capacity in use, unless
    `allow_replace_active` is set. Outputs of the queued resource (components.gcp_tpu), known once the capacity was granted.
    """

    zone: pulumi.Output[str]
    node_name: pulumi.Output[str]
    state: pulumi.Output[str]
    phase: pulumi.Output[str | None]
    container: pulumi.Output[str | None]
    deadline: pulumi.Output[str | None]
    address: pulumi.Output[str | None]
    """Address of the machine in its network, or None without a machine. Another machine has another address."""

    def __init__(self, name: str, args: TpuQueuedResourceArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        accelerator_type = api_accelerator_type(args.accelerator_type)
        runtime_version = args.runtime_version or image_of(args.accelerator_type, args.api)
        super().__init__("gemma-serving:index:TpuQueuedResource", name, None, opts)
        resource = QueuedResource(
            name,
            QueuedResourceArgs(
                project=args.project,
                zones=list(args.zones),
                queued_resource_id=args.queued_resource_id,
                accelerator_type=accelerator_type,
                runtime_version=runtime_version,
                api=args.api,
                provisioning_model=args.provisioning_model,
                reservation_name=args.reservation_name,
                max_run_duration_s=args.max_run_duration_s,
                wait_per_zone_s=args.wait_per_zone_s,
                wait_total_s=args.wait_total_s,
                renew_before_s=args.renew_before_s,
                valid_until_duration_s=args.wait_per_zone_s + _PROVISIONING_S,
                boot_disk_size_gb=args.boot_disk_size_gb,
                network=args.network,
                subnetwork=args.subnetwork,
                enable_external_ips=False,
                service_account=ServiceAccountArgs(email=args.service_account, scopes=[_CLOUD_PLATFORM]),
                labels={**args.labels, **args.ownership.labels},
                tags=list(args.tags),
                metadata=_metadata(args),
                wait_for=args.wait_for,
                ready=ReadyArgs(
                    guest_attribute_namespace=GUEST_ATTRIBUTE_NAMESPACE,
                    document_metadata_key=DOCUMENT_METADATA_KEY,
                    deadline_metadata_key=ENDS_AT_METADATA_KEY,
                    timeout_s=args.ready_timeout_s,
                ),
                next_steps=list(args.next_steps),
                allow_replace_active=args.allow_replace_active,
            ),
            pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(args)),
        )
        self.zone, self.node_name, self.state = resource.zone, resource.node_name, resource.state
        self.phase, self.container, self.deadline = resource.phase, resource.container, resource.deadline
        self.address = resource.node_ips.apply(lambda ips: ips[0] if ips else None)
        self.register_outputs(
            {
                "zone": self.zone,
                "nodeName": self.node_name,
                "state": self.state,
                "phase": self.phase,
                "container": self.container,
                "deadline": self.deadline,
            }
        )


def _metadata(args: TpuQueuedResourceArgs) -> "dict[str, pulumi.Input[str]]":
    """Return the machine's metadata: each key is Google's or read by a module of `vm_agent` (tests/components/test_machine_keys.py)."""
    limits = RolloutLimits(
        # The machine times out before `pulumi up` does, so `up` sees the server that runs afterwards.
        ready_timeout_s=max(args.ready_timeout_s - _NOTICE_S, args.ready_timeout_s / 2),
        drain_s=args.drain_s,
        shutdown_flag=args.shutdown_flag,
        is_privileged=args.privileged,
    )
    by_region = args.image_repositories
    return {
        SCRIPT_METADATA_KEY: startup_script(),
        "enable-guest-attributes": "TRUE",
        # Without OS Login every SSH key in the project's metadata has root access to the machine. `block-project-ssh-keys` excludes those
        # too, but gcloud adds no key to a machine if the user's key is in the project's metadata. That user could never log in.
        # An explicit FALSE: without the key, the project's metadata decides.
        "enable-oslogin": "TRUE" if args.os_login else "FALSE",
        DOCUMENT_METADATA_KEY: args.document,
        ROLLOUT_METADATA_KEY: limits.text(),
        **(
            {}
            if len(by_region) <= 1
            else {REPOSITORIES_METADATA_KEY: pulumi.Output.json_dumps(by_region, sort_keys=True, separators=(",", ":"))}
        ),
        **({} if args.compile_archive is None else {ARCHIVE_METADATA_KEY: args.compile_archive}),
        **({} if args.collector is None else {COLLECTOR_METADATA_KEY: args.collector}),
    }


def timeouts(args: TpuQueuedResourceArgs) -> pulumi.CustomTimeouts:
    """Return the engine's timeouts: the sum of all waits of the provider, each at its maximum."""
    waits_s = len(args.zones) * args.wait_per_zone_s
    if args.wait_total_s is not None:
        waits_s = min(waits_s, args.wait_total_s)
    # The machine may roll back to its last document after the time for the new one, and take equally long for it.
    ready_s = 2 * args.ready_timeout_s
    whole_s = waits_s + len(args.zones) * (_PROVISIONING_S + _DELETE_TIMEOUT_S) + ready_s
    machines = machines_at_once(args.renew_before_s)
    return pulumi.CustomTimeouts(
        create=f"{whole_s}s", update=f"{machines * whole_s}s", delete=f"{machines * _DELETE_TIMEOUT_S}s"
    )
