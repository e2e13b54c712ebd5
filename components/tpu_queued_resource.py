"""TPU capacity as a queued resource, and its server: a document in the node's metadata, which the provider patches in place."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from inspect import get_annotations
from typing import Final

import pulumi

from gemma_serving.components.checks import (
    Input,
    Labels,
    Owner,
    argument,
    arguments,
    program_ownership,
    require_names,
    require_valid,
)
from gemma_serving.components.startup_script import startup_script
from gemma_serving.components.vllm_server import VllmServer
from gemma_serving.contracts.collector import COLLECTOR_METADATA_KEY
from gemma_serving.contracts.compile_cache import ARCHIVE_METADATA_KEY
from gemma_serving.contracts.guest_attributes import GUEST_ATTRIBUTE_NAMESPACE
from gemma_serving.contracts.resource_types import CAPACITY_COMPONENT, CAPACITY_TYPE
from gemma_serving.contracts.rollout import ENDS_AT_METADATA_KEY, ROLLOUT_METADATA_KEY, RolloutLimits
from gemma_serving.contracts.serving_document import (
    DOCUMENT_METADATA_KEY,
    REPOSITORIES_METADATA_KEY,
    SCRIPT_METADATA_KEY,
    BucketWeights,
    ServingDocument,
)
from gemma_serving.planning.cost.capacity_order import capacity_order, ceiling_problem, waits_s_of
from gemma_serving.planning.data.prices import LIST_PRICES, PriceBook
from gemma_serving.planning.machine.hardware import api_accelerator_type, image_of
from gemma_serving.planning.settings import text
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.google_limits import accelerator_problem, run_limit_problem
from gemma_serving.planning.settings.tpu import TpuSettings
from gemma_serving.planning.settings.vllm_args import XLA_CACHE_PATH, vllm_environment

_CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"

DRAIN_S: Final = 30
"""Seconds for running requests to finish before their server is stopped. llm-d's guides use the same value for vLLM (2026-06)."""
_SHM_SIZE_GIB: Final = 16
_PROVISIONING_S = 1800
"""The provider's extra wait for capacity that is in PROVISIONING when `wait_per_zone_s` expires. If Google dropped the request earlier, imminent
capacity could be lost."""
_NOTICE_S = 60
"""Seconds by which the TPU VM rejects a document before `pulumi up` times out."""
_DELETE_TIMEOUT_S = 1800
"""The provider's limit for one deletion, before the next zone and at the end."""
_OUTPUTS: Final = {"nodeName": "node_name", "nodeIps": "node_ips", "provisioningModelInUse": "provisioning"}
"""Output of the provider -> its name in Python, if they differ."""
require_names(TpuSettings)


@arguments
class TpuQueuedResourceArgs(Block):
    """The requested capacity, and its server.

    Of `tpu`, a component has no use for `existing_network`, `egress`, `idle_after_s` and `tunnel_*`, from which a stack declares
    networks, labels and grants. `compile_cache: bucket` needs `compile_archive`.
    """

    project: text.ProjectId
    """Id of the Google Cloud project. A change replaces the capacity."""
    queued_resource_id: text.QueuedResourceId
    """Id of the queued resource and prefix of its node's id: letters, digits and hyphens. A change replaces the capacity."""
    tpu: TpuSettings
    """Slice, zones, provisioning, run limit, waits, disk and image."""
    server: VllmServer
    """The server. A change restarts it in place."""
    network: Input[text.Network]
    """projects/P/global/networks/N. A change replaces the capacity."""
    subnetwork: Input[text.Subnetwork]
    """Name of a subnet in the region of each zone, with Private Google Access. The hub and images of Docker Hub need Cloud NAT."""
    service_account: Input[text.AccountEmail]
    """E-mail address of the account that pulls the image, reads secrets and weights, and writes logs and metrics."""
    weights: Input[BucketWeights] | None = None
    """Bucket folder to copy first, and its path in the container, the server's first argument. Default: vLLM downloads the model."""
    parts: Sequence[BucketWeights] = ()
    """Drafters and adapters to copy in addition to the weights."""
    shm_size_gib: text.PositiveNumber = _SHM_SIZE_GIB
    """Shared memory of the container in GiB, in which vLLM's workers exchange tensors."""
    image_repositories: Mapping[str, Input[str]] = field(default_factory=dict[str, pulumi.Input[str]])
    """HOST/PROJECT/REPOSITORY of each region that has the server's image. A TPU VM pulls from its own region if possible."""
    tags: Sequence[text.ResourceName] = ()
    """Network tags, including the one in the tunnel's firewall rule. A change updates the TPU VM in place."""
    drain_s: text.NumberFromZero = DRAIN_S
    """Seconds for running requests to finish before a server is stopped."""
    shutdown_flag: bool = False
    """True if the image's vLLM has `--shutdown-timeout`, with which the server drains its requests itself."""
    compile_archive: Input[str] | None = None
    """Metadata with the archive of compiled programs (contracts.compile_cache). Default: none."""
    collector: Input[str] | None = None
    """Metadata with the collector of metrics (contracts.collector). Default: none. A change does not restart the server."""
    prices: PriceBook = LIST_PRICES
    """Prices that `tpu.max_usd_per_hour` is compared with. Default: the shipped prices."""
    next_steps: Sequence[str] = ()
    """Next steps, appended to the error if no zone grants capacity."""
    ownership: Owner = field(default_factory=program_ownership)
    """Owner in the labels of the TPU VM. Default: the project and stack of the running program."""
    labels: Labels = field(default_factory=dict[str, pulumi.Input[str]])
    """Additional labels of the TPU VM. A change updates it in place."""
    accepts_limits: bool = False
    """Skip the check of the run limit, for a limit that Google has raised."""

    def problems(self) -> Iterator[str]:
        """Yield each invalid argument: argument, value, what is allowed, and what to do."""
        if unknown := accelerator_problem(self.tpu.accelerator_type, argument):
            yield unknown
        if self.tpu.max_usd_per_hour is not None and (problem := ceiling_problem(self.tpu, self.prices)):
            yield f"{problem.message}. Raise it, or remove it"
        run = None if self.accepts_limits else run_limit_problem(self.tpu, argument)
        if run is not None:
            message, allowed_s = run
            yield f"{message} Set `tpu.max_run_duration_s` to {allowed_s}, for example"


class _QueuedResource(pulumi.CustomResource):
    """The provider's resource, with the outputs that the component reads."""

    zone: pulumi.Output[str]
    node_name: pulumi.Output[str]
    provisioning: pulumi.Output[str | None]
    state: pulumi.Output[str]
    phase: pulumi.Output[str | None]
    container: pulumi.Output[str | None]
    deadline: pulumi.Output[str | None]
    node_ips: pulumi.Output[Sequence[str] | None]

    def __init__(self, name: str, inputs: pulumi.Inputs, opts: pulumi.ResourceOptions) -> None:
        # Pulumi resolves the outputs that the properties name.
        outputs = dict.fromkeys(get_annotations(_QueuedResource))
        super().__init__(CAPACITY_TYPE, name, {**inputs, **outputs}, opts)

    def translate_output_property(self, prop: str) -> str:
        """Return the name in Python of an output."""
        return _OUTPUTS.get(prop, prop)


class TpuQueuedResource(pulumi.ComponentResource):
    """Capacity in the first zone that grants it, and its server.

    The TPU VM has no external address: it needs `network` with Private Google Access, and a tunnel to reach the server. A changed server
    restarts in place. The provider rejects a change that releases capacity in use, unless `tpu.allow_replace_active` is set.
    Outputs of the queued resource are known once the capacity was granted.
    Raises InvalidArgumentError with one sentence for an invalid argument, before it declares a resource.
    """

    zone: pulumi.Output[str]
    """Zone that granted the capacity."""
    node_name: pulumi.Output[str]
    """projects/P/locations/Z/nodes/N, or projects/P/zones/Z/instances/N with `api: compute-engine`."""
    provisioning: pulumi.Output[str | None]
    """Form of the capacity, such as spot."""
    state: pulumi.Output[str]
    """State of the queued resource, such as ACTIVE."""
    phase: pulumi.Output[str | None]
    """Phase that the TPU VM reported last, such as `ready`."""
    container: pulumi.Output[str | None]
    """Access of the server's container to the TPU VM, as reported: `confined`, or less and the reason."""
    deadline: pulumi.Output[str | None]
    """Time at which Google deletes the TPU VM, RFC 3339; None without a run limit."""
    address: pulumi.Output[str | None]
    """Address of the TPU VM in its network, or None without one. Another TPU VM has another address."""
    service_account: pulumi.Output[str]
    """E-mail address of the account that the server runs as."""

    def __init__(self, name: str, args: TpuQueuedResourceArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        require_valid(f'TpuQueuedResource "{name}"', args, TpuQueuedResourceArgs)
        tpu = args.tpu
        super().__init__(CAPACITY_COMPONENT, name, None, opts)
        resource = _QueuedResource(
            name,
            _inputs(args),
            pulumi.ResourceOptions(
                parent=self,
                custom_timeouts=timeouts(tpu),
                # For `pulumi up --replace`, the engine does not ask the provider, whose diffs state the same.
                delete_before_replace=True,
                depends_on=args.server.needed,
            ),
        )
        self.zone = resource.zone
        self.node_name = resource.node_name
        self.provisioning = resource.provisioning
        self.state = resource.state
        self.phase = resource.phase
        self.container = resource.container
        self.deadline = resource.deadline
        self.address = resource.node_ips.apply(lambda ips: ips[0] if ips else None)
        self.service_account = pulumi.Output.from_input(args.service_account)
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


def _inputs(args: TpuQueuedResourceArgs) -> pulumi.Inputs:
    """Return the inputs of the queued resource, by their names in the provider's schema."""
    tpu = args.tpu
    return {
        "project": args.project,
        "zones": list(tpu.zones),
        "queuedResourceId": args.queued_resource_id,
        "acceleratorType": api_accelerator_type(tpu.accelerator_type),
        "runtimeVersion": tpu.runtime_version or image_of(tpu.accelerator_type, tpu.api),
        "api": tpu.api,
        "provisioningModel": None if tpu.has_order else tpu.forms[0].model,
        "forms": _forms(tpu, args.prices) if tpu.has_order else None,
        "reservationName": tpu.reservation,
        "maxRunDurationS": tpu.max_run_duration_s,
        "waitPerZoneS": tpu.wait_per_zone_s,
        "waitTotalS": tpu.wait_total_s,
        "validUntilDurationS": tpu.wait_per_zone_s + _PROVISIONING_S,
        "bootDiskSizeGb": tpu.boot_disk_size_gb,
        "network": args.network,
        "subnetwork": args.subnetwork,
        "enableExternalIps": False,
        "serviceAccount": {"email": args.service_account, "scopes": [_CLOUD_PLATFORM]},
        "labels": {**args.labels, **args.ownership.labels},
        "tags": list(args.tags),
        "metadata": _metadata(args),
        "waitFor": tpu.wait_for,
        "ready": {
            "guestAttributeNamespace": GUEST_ATTRIBUTE_NAMESPACE,
            "documentMetadataKey": DOCUMENT_METADATA_KEY,
            "deadlineMetadataKey": ENDS_AT_METADATA_KEY,
            "timeoutS": tpu.ready_timeout_s,
        },
        "nextSteps": list(args.next_steps),
        "allowReplaceActive": tpu.allow_replace_active,
    }


def _forms(tpu: TpuSettings, prices: PriceBook) -> Sequence[Mapping[str, object]]:
    """Return the forms of capacity in order, each with its wait and the zones whose price the ceiling allows."""
    forms: list[Mapping[str, object]] = []
    for form, step in zip(tpu.forms, capacity_order(tpu, prices), strict=True):
        zones = None if step.zones == tpu.zones else list(step.zones)
        given = {"provisioningModel": form.model, "waitS": form.wait_s, "zones": zones}
        # Inside a list the engine gets None as null, not as absent.
        forms.append({name: value for name, value in given.items() if value is not None})
    return forms


def _metadata(args: TpuQueuedResourceArgs) -> "dict[str, pulumi.Input[str]]":
    """Return the TPU VM's metadata: each key is Google's or read by a module of `vm_agent` (tests/components/test_machine_keys.py)."""
    tpu = args.tpu
    limits = RolloutLimits(
        # The TPU VM times out before `pulumi up` does, so `up` sees the server that runs afterwards.
        ready_timeout_s=max(tpu.ready_timeout_s - _NOTICE_S, tpu.ready_timeout_s / 2),
        drain_s=args.drain_s,
        shutdown_flag=args.shutdown_flag,
        is_privileged=tpu.container == "privileged",
    )
    by_region = args.image_repositories
    return {
        SCRIPT_METADATA_KEY: startup_script(),
        "enable-guest-attributes": "TRUE",
        # Without OS Login every SSH key in the project's metadata has root access to the TPU VM. `block-project-ssh-keys` excludes those
        # too, but gcloud adds no key to a machine if the user's key is in the project's metadata. That user could never log in.
        # An explicit FALSE: without the key, the project's metadata decides.
        "enable-oslogin": "TRUE" if tpu.ssh == "os-login" else "FALSE",
        DOCUMENT_METADATA_KEY: _document(args),
        ROLLOUT_METADATA_KEY: limits.text(),
        **(
            {}
            if len(by_region) <= 1
            else {REPOSITORIES_METADATA_KEY: pulumi.Output.json_dumps(by_region, sort_keys=True, separators=(",", ":"))}
        ),
        **({} if args.compile_archive is None else {ARCHIVE_METADATA_KEY: args.compile_archive}),
        **({} if args.collector is None else {COLLECTOR_METADATA_KEY: args.collector}),
    }


def _document(args: TpuQueuedResourceArgs) -> pulumi.Output[str]:
    """Return the text of the document that the TPU VM's agent serves."""
    server = args.server
    cache = None if args.tpu.compile_cache == "off" else XLA_CACHE_PATH
    environment = {**vllm_environment(is_tpu=True, is_moe=False, xla_cache_path=cache), **server.environment}

    def text(image: str, arguments: Sequence[str], secrets: Mapping[str, str], weights: BucketWeights | None) -> str:
        return ServingDocument(
            image=image,
            command=server.command,
            arguments=arguments,
            environment=environment,
            secret_environment=secrets,
            port=server.port,
            shm_size_gib=args.shm_size_gib,
            weights=weights,
            parts=args.parts,
        ).text()

    versions = {name: secret.version_name for name, secret in server.secrets.items()}
    return pulumi.Output.all(
        server.image,
        pulumi.Output.from_input(list(server.arguments)),
        pulumi.Output.from_input(versions),
        args.weights,
    ).apply(lambda known: text(*known))


def timeouts(tpu: TpuSettings) -> pulumi.CustomTimeouts:
    """Return the engine's timeouts: the sum of all waits of the provider, each at its maximum."""
    waits_s = sum(waits_s_of(tpu))
    if tpu.wait_total_s is not None:
        waits_s = min(waits_s, tpu.wait_total_s)
    # The TPU VM may roll back to its last document after the time for the new one, and take equally long for it.
    ready_s = 2 * tpu.ready_timeout_s
    whole_s = waits_s + len(tpu.forms) * len(tpu.zones) * (_PROVISIONING_S + _DELETE_TIMEOUT_S) + ready_s
    return pulumi.CustomTimeouts(create=f"{whole_s}s", update=f"{whole_s}s", delete=f"{_DELETE_TIMEOUT_S}s")
