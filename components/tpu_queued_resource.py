"""TPU capacity as a queued resource, and the server that runs on it.

The two change at different speeds: capacity is scarce and slow, serving changes daily. The start-up script is constant; what to run is a document in the
node's metadata, which the provider patches in place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi

from components.errors import ComponentError
from components.gcp_tpu import QueuedResource, QueuedResourceArgs, ReadyArgs, ServiceAccountArgs
from components.ownership import Ownership
from components.serving_document import GUEST_ATTRIBUTE_NAMESPACE, METADATA_KEY
from components.tpu_vm import startup_script
from planning.hardware import FLEX_START_MAX_RUN_S

_CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"

_API_GENERATIONS = {"v5e": "v5litepod"}
"""Generations that the Cloud TPU API calls by another name than everybody else."""

_RUNTIME_VERSIONS = {"v6e": "v2-alpha-tpuv6e", "v5litepod": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5"}
"""Runtime image of each TPU generation (Cloud TPU documentation, "TPU software versions")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuQueuedResourceArgs:
    """Times in seconds. `document` is the serving document's text; `zones` are tried in order.

    `ready_timeout_s` bounds the wait for the server after the capacity came.
    """

    project: str
    queued_resource_id: str
    zones: Sequence[str]
    accelerator_type: str
    provisioning_model: str
    document: pulumi.Input[str]
    network: pulumi.Input[str]
    subnetwork: str
    service_account: pulumi.Input[str]
    ownership: Ownership
    labels: Mapping[str, str]
    tags: Sequence[str]
    wait_per_zone_s: int
    ready_timeout_s: int
    max_run_duration_s: int | None = None
    reservation_name: str | None = None
    runtime_version: str | None = None
    allow_replace_active: bool = False


def api_accelerator_type(accelerator_type: str) -> str:
    """Return the Cloud TPU API's name of an accelerator type: "v5litepod-4" for "v5e-4", others as they are."""
    generation, dash, chips = accelerator_type.partition("-")
    return f"{_API_GENERATIONS.get(generation, generation)}{dash}{chips}"


def runtime_version(accelerator_type: str) -> str:
    """Return the runtime version that goes with an accelerator type such as "v6e-4". Raises ComponentError for a generation that is not known."""
    generation = api_accelerator_type(accelerator_type).partition("-")[0]
    if generation not in _RUNTIME_VERSIONS:
        known = ", ".join(sorted(_RUNTIME_VERSIONS))
        raise ComponentError(
            f"tpu.acceleratorType = {accelerator_type}: no runtime version is known for {generation} (known: {known}); set tpu.runtimeVersion."
        )
    return _RUNTIME_VERSIONS[generation]


class TpuQueuedResource(pulumi.ComponentResource):
    """Capacity in the first zone that has it, running the server that the document describes.

    `zone`, `node_name` and `state` are known once the capacity is there. A changed document restarts the server in place; a change that would give up
    running capacity is refused by the provider unless `allow_replace_active` is set.
    """

    zone: pulumi.Output[str]
    node_name: pulumi.Output[str]
    state: pulumi.Output[str]

    def __init__(self, name: str, args: TpuQueuedResourceArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        _check_run_duration(args)
        version = args.runtime_version or runtime_version(args.accelerator_type)
        super().__init__("gemma-serving:index:TpuQueuedResource", name, None, opts)
        resource = QueuedResource(
            name,
            QueuedResourceArgs(
                project=args.project,
                zones=list(args.zones),
                queued_resource_id=args.queued_resource_id,
                accelerator_type=api_accelerator_type(args.accelerator_type),
                runtime_version=version,
                provisioning_model=args.provisioning_model,
                reservation_name=args.reservation_name,
                max_run_duration_s=args.max_run_duration_s,
                wait_per_zone_s=args.wait_per_zone_s,
                network=args.network,
                subnetwork=args.subnetwork,
                enable_external_ips=False,
                service_account=ServiceAccountArgs(email=args.service_account, scopes=[_CLOUD_PLATFORM]),
                labels={**args.labels, **args.ownership.labels},
                tags=list(args.tags),
                metadata={
                    "startup-script": startup_script(),
                    "enable-guest-attributes": "TRUE",
                    METADATA_KEY: args.document,
                },
                wait_for="ready",
                ready=ReadyArgs(
                    guest_attribute_namespace=GUEST_ATTRIBUTE_NAMESPACE,
                    document_metadata_key=METADATA_KEY,
                    timeout_s=args.ready_timeout_s,
                ),
                allow_replace_active=args.allow_replace_active,
            ),
            pulumi.ResourceOptions(parent=self, custom_timeouts=_timeouts(args)),
        )
        self.zone, self.node_name, self.state = resource.zone, resource.node_name, resource.state
        self.register_outputs({"zone": self.zone, "nodeName": self.node_name})


def _check_run_duration(args: TpuQueuedResourceArgs) -> None:
    if args.provisioning_model != "flex-start":
        return
    if args.max_run_duration_s is None or not 0 < args.max_run_duration_s <= FLEX_START_MAX_RUN_S:
        found = "nothing" if args.max_run_duration_s is None else f"{args.max_run_duration_s} s"
        raise ComponentError(
            f"tpu.maxRunDuration is {found}; flex-start needs one, {FLEX_START_MAX_RUN_S} s (7 days) at most."
        )


def _timeouts(args: TpuQueuedResourceArgs) -> pulumi.CustomTimeouts:
    """The engine's own limit: every wait of the provider, one after the other, and a margin for deletes between zones."""
    margin_s = 900
    whole_s = len(args.zones) * (args.wait_per_zone_s + margin_s) + args.ready_timeout_s
    return pulumi.CustomTimeouts(create=f"{whole_s}s", update=f"{whole_s}s", delete="1800s")
