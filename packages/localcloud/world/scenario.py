"""Scenario of the simulation: capacity, quota, durations, faults. It comes from a YAML or JSON file, or from a PUT to the admin API."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from localcloud.hub.repositories import State
from localcloud.json_values import filled, packaged
from localcloud.vllm.faults import ModelServerFault
from localcloud.world.catalog import gpu_types, tpu_generations
from localcloud.world.oauth import ID_TOKEN_LIFETIME_S
from localcloud.world.runtime import DeviceAccess

Seconds: TypeAlias = Annotated[float, Field(ge=0)]


class _ScenarioPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TpuDurations(_ScenarioPart):
    """Simulated seconds of each state. Google publishes no figures; these have the right order and a plausible duration."""

    creating: Seconds = 5
    accepted: Seconds = 20
    waiting_for_resources: Seconds = 60
    provisioning: Seconds = 60
    suspending: Seconds = 10
    deleting: Seconds = 10
    node_update: Seconds = 5
    stockout: Seconds = 5
    """From the insertion of an instance that does not wait until its operation says that the zone has no capacity."""
    ssh_key: Seconds = 60
    """From the first SSH key in a node's metadata until the node accepts it. The real gcloud tries ten times, 5 s apart."""


Form: TypeAlias = Literal["FLEX_START", "SPOT", "STANDARD"]
"""A provisioning model that has its own capacity in a zone."""


class Stock(_ScenarioPart):
    """What one zone has for one provisioning model, and how its requests end that get nothing or are given up. Both APIs share it."""

    chips: int | None = Field(default=None, ge=0)
    """Chips that all nodes and instances of the model can have at a time. None: no limit except the zone's `capacity`."""
    after_s: Seconds = 0
    """Simulated seconds from a request until its capacity is there. A request that does not wait finds none."""
    dry: Literal["waits", "fails"] = "waits"
    """End of a queued resource without capacity: it waits until its valid-until time, or it becomes FAILED with Google's words. An instance waits
    if its request does (flex-start), and fails otherwise."""
    lost_deletions: int = Field(default=0, ge=0)
    """Number of deletions of waiting requests that come too late: `late_s` afterwards the request is granted, even without stock.

    Until then the queued resource waits. Then the operation of its deletion fails with code 9. The operation of an instance's deletion succeeds
    and the instance is gone, and afterwards it appears again.
    """
    late_s: Seconds = 300
    """Simulated seconds from a deletion that comes too late to the grant."""


class TpuZone(_ScenarioPart):
    """One zone: its accelerator types, whether it accepts flex-start, the free nodes of each type, the stock of each model, the quota in chips."""

    accelerator_types: tuple[str, ...]
    flex_start: bool = False
    capacity: dict[str, int] = Field(default_factory=dict)
    """Free nodes by accelerator type. A type that is not listed has no limit."""
    stock: dict[Form, Stock] = Field(default_factory=dict[Form, Stock])
    """By provisioning model. A model that is not listed has no limit of its own."""
    quota_chips: int | None = None
    """Chips of on-demand quota; None for `Tpu`'s value."""
    preemptible_quota_chips: int | None = None
    """Chips of preemptible quota, which spot and flex-start use; None for `Tpu`'s value."""


_PRICED_FLEX_START = frozenset({"us-west4-a"})
"""Zones that accept flex-start here because its list price names their region; the price names no zone, so the catalog has none for v5e."""


def _zones() -> dict[str, TpuZone]:
    """Return the zones of the catalog with their accelerator types. The catalog's others reject flex-start: field reports and Google's page."""
    types: dict[str, tuple[str, ...]] = {}
    flex_start = set(_PRICED_FLEX_START)
    for generation in reversed(tpu_generations().values()):
        flex_start.update(generation.flex_start_zones)
        for zone in generation.zones:
            types[zone] = (*types.get(zone, ()), *generation.types)
    return {zone: TpuZone(accelerator_types=kinds, flex_start=zone in flex_start) for zone, kinds in types.items()}


class ComputeTpu(_ScenarioPart):
    """TPU machine types of Compute Engine. Their quotas are separate from the quotas of the Cloud TPU API, by region.

    Figures: a field report of August 2026 (xbill9/gemma4-dev, "The unofficial TPU migration guide"), and Compute Engine's page on Flex-start VMs.
    """

    preemptible_quota_chips: int = 1536
    """PREEMPTIBLE-TPU-V6E-per-project-region, and that of each other generation, which flex-start and spot use, of each region without an entry in
    `preemptible_quota_overrides`."""
    preemptible_quota_overrides: dict[str, int] = Field(default_factory=dict)
    """Region -> chips."""
    family_quota_chips: int = 0
    """TPUS-PER-TPU-FAMILY-per-project-region of a family such as CT6E: on-demand, and flex-start if the preemptible quota does not suffice."""
    all_regions_quota_chips: int = 1536
    """GPUS_ALL_REGIONS of the project, which counts the chips of instances too. A new project has none (one report, of v5e on GKE:
    xprilion.com, "Autoscaling LLM inference on GKE with TPU v5e and vLLM")."""
    max_wait_s: Seconds = 7200
    """Maximum `requestValidForDuration`."""
    min_wait_s: Seconds = 90
    """Minimum `requestValidForDuration`. Below it the request does not wait."""
    min_run_s: Seconds = 600
    """Minimum `maxRunDuration` of flex-start."""
    image_families: tuple[str, ...] = Field(
        default_factory=lambda: tuple(
            dict.fromkeys(one.boot_image for one in tpu_generations().values() if one.boot_image)
        )
    )
    """Boot images that exist. None has docker."""
    image_size_gb: int = 10


OLDER_RUNTIME = "tpu-ubuntu2204-base"
"""Runtime version of v2 to v4. Google creates a newer TPU with it too, and the VM has no driver for the chips (github.com/pytorch/xla/issues/9753)."""


class Tpu(_ScenarioPart):
    """Cloud TPU."""

    zones: dict[str, TpuZone] = Field(default_factory=_zones)
    quota_chips: int = 64
    """Chips of on-demand quota in each zone without its own value. A new project has none."""
    preemptible_quota_chips: int = 64
    """Chips of preemptible quota in each zone without its own value. A new project has none."""
    runtime_versions: tuple[str, ...] = Field(
        default_factory=lambda: (
            *(one.runtime_version for one in tpu_generations().values() if one.runtime_version),
            OLDER_RUNTIME,
            "v2-tpuv5-litepod",
        )
    )
    durations_s: TpuDurations = TpuDurations()
    without_quota: Literal["fails", "waits"] = "fails"
    """End of a queued resource whose quota does not suffice: FAILED with Google's words, or it waits without a reason, as on Compute Engine."""
    max_flex_start_run_s: Seconds = 7 * 24 * 3600
    """Flex-start runs last at most seven days (Cloud TPU's flex-start documentation)."""
    refuses_deletion_in: Literal["answer", "operation"] = "answer"
    """Location of the error for a deletion without `force` in a state that needs it: 400 in the response, or an operation that fails with code 9."""
    devices: DeviceAccess = "open"
    """Access of a container without `--privileged` to a machine's chips: `denied` makes libtpu fail to open them, `absent` leaves them out of /dev."""
    compute: ComputeTpu = ComputeTpu()
    accelerate_run_duration: bool = False
    """True: run durations pass on the accelerated clock."""

    def chips_of(self, zone: TpuZone, *, preemptible: bool) -> int:
        """Return the quota of chips in a zone."""
        own = zone.preemptible_quota_chips if preemptible else zone.quota_chips
        if own is not None:
            return own
        return self.preemptible_quota_chips if preemptible else self.quota_chips


class Run(_ScenarioPart):
    """Cloud Run."""

    gpu_regions: dict[str, tuple[str, ...]] = Field(
        default_factory=lambda: {name: tuple(gpu.regions) for name, gpu in gpu_types().items()}
    )
    """GPU type -> regions, without those by invitation."""
    gpu_quota: int = 3
    """GPUs without zonal redundancy, per project, region and type."""
    gpu_quota_zonal_redundancy: int = 0
    """GPUs with zonal redundancy."""
    gpu_quota_overrides: dict[str, int] = Field(default_factory=dict)
    """`REGION/TYPE` or `REGION/TYPE/zonal` -> GPUs."""
    gpu_drivers: dict[str, Literal[535, 580]] = Field(
        default_factory=lambda: {"nvidia-l4": 535, "nvidia-rtx-pro-6000": 580}
    )
    """GPU type -> branch of its NVIDIA driver: 535 provides CUDA 12.2, 580 provides 13.0 (Cloud Run's GPU page). According to a public script of 2026 the
    L4's driver has CUDA 13.0, so test both. A type that is not listed has a driver that runs everything."""
    cpu_quota: int = 200
    """Maximum vCPU of all instances of a service in the region. A new project has 20."""
    memory_quota_gib: int = 400
    """Maximum GiB of memory of all instances of a service in the region. A new project has 40."""
    cpu_quota_overrides: dict[str, int] = Field(default_factory=dict)
    """Region -> vCPU."""
    memory_quota_gib_overrides: dict[str, int] = Field(default_factory=dict)
    """Region -> GiB."""

    def cpus_of(self, region: str) -> int:
        """Return the quota of vCPU in a region."""
        return self.cpu_quota_overrides.get(region, self.cpu_quota)

    def memory_gib_of(self, region: str) -> int:
        """Return the quota of memory in a region, in GiB."""
        return self.memory_quota_gib_overrides.get(region, self.memory_quota_gib)

    def gpus_of(self, region: str, kind: str, *, zonal: bool) -> int:
        """Return the quota of a GPU type in a region, with or without zonal redundancy."""
        default = self.gpu_quota_zonal_redundancy if zonal else self.gpu_quota
        return self.gpu_quota_overrides.get(f"{region}/{kind}" + ("/zonal" if zonal else ""), default)


class Services(_ScenarioPart):
    """APIs of a new project, and the delay until an enabled one responds."""

    enabled: Literal["all"] | tuple[str, ...] = "all"
    """`all`: every API is enabled in every new project. A list: only these, those enabled later, and Service Usage."""
    lag_s: Seconds = 0
    """Simulated seconds for which an API still answers SERVICE_DISABLED after it was enabled.

    Google's own error text: "If you enabled this API recently, wait a few minutes for the action to propagate to our systems and retry."
    """
    disabled_form: Literal["details", "errors"] = "details"
    """Form of SERVICE_DISABLED: `details` alone, or also `errors`, whose reason the provider gcp tolerates if it needs no answer."""


class Iam(_ScenarioPart):
    """Delays until changes of identities and access take effect."""

    lag_s: Seconds = 0
    """Simulated seconds until a grant takes effect. It appears in the policy immediately.

    "Typically 2 minutes, potentially 7 minutes or longer": cloud.google.com/iam/docs/access-change-propagation, 2026-11.
    """
    new_account_lag_s: Seconds = 0
    """Simulated seconds until a new service account can be granted a role or attached. It can be read after half of that time.

    The provider's own issues show both: reads that answer 404 or 403 after the creation (hashicorp/terraform-provider-google#19624, #22546),
    and "Service account ... does not exist" for a grant.
    """
    new_account_refusals: int = Field(default=0, ge=0)
    """Minimum number of rejected uses of a new service account, regardless of how late they come: on a slow machine simulated time passes."""
    id_token_life_s: float = Field(default=ID_TOKEN_LIFETIME_S, gt=0)
    """Lifetime of an ID token in real seconds. Google's is an hour; a short one shows whether a client renews its tokens."""
    new_role_lag_s: Seconds = 0
    """Simulated seconds until a new custom role can be granted. It can be read immediately.

    Until then Google answers "does not exist in the resource's hierarchy"; public repositories of 2026 measured 12 to 20 s.
    """
    organization: str = ""
    """Number of the projects' organization. Empty: no organization, so no custom role of an organization can be granted."""
    organization_domain: str = ""
    """Domain of the project's organization. Users of another domain are outside it. Empty: every user belongs to it."""
    external_logins: tuple[str, ...] = ()
    """Users outside the organization who have roles/compute.osLoginExternalUser on it."""
    login_is_owner: bool = True
    """False: the credentials of the environment have no role in a new project until its owner grants one; gcloud acts as the owner."""
    login_is_person: bool = False
    """True: the credentials of the environment belong to a user, the owner, whose calls need a quota project."""


_VLLM_OPENAI = "docker.io/vllm/vllm-openai"
_VLLM_TPU = "docker.io/vllm/vllm-tpu"
_COLLECTOR = "us-docker.pkg.dev/cloud-ops-agents-artifacts/google-cloud-opentelemetry-collector/otelcol-google"


class Images(_ScenarioPart):
    """Images, and the limits of Docker Hub. An image that is neither listed here nor pushed does not exist."""

    existing: tuple[str, ...] = (
        f"{_VLLM_OPENAI}:v0.31.0@sha256:c1c9f6fd5c109ba7f0546a59f5b2f15fb87f64c77782e90a27b648b42a8e67c3",
        f"{_VLLM_TPU}@sha256:19a1a0526476f902eb83e1057f3d8938f35b457dd7716a30e9ab4f7bee90d507",
        f"{_VLLM_TPU}@sha256:ea98ed065a86d3e69ec7142b9f4766aa3cd7e475d752e680f4ef7612745aca61",
        f"{_VLLM_OPENAI}:v0.28.0@sha256:61fc8a896b0a4fbbbdc063bc4b0dbc25ce98e02b5050c24aeb7830ac02039b14",
        "us-docker.pkg.dev/cloudrun/container/hello",
        f"{_COLLECTOR}:0.135.0@sha256:90c2bab052e6c9da37efb6e7181b0cbb99562b9b39096dce895c7afe957b3b02",
    )
    """Existing images: `HOST/NAME`, then `:TAG`, `@sha256:DIGEST` or both. Without either, the tag is `latest`.

    An image of a simulated project's repository exists once the repository does.
    """
    docker_hub_pulls: int = Field(default=100, ge=0)
    """Pulls that Docker Hub allows one address in six hours without an account. With 0, it answers each with 429, `toomanyrequests`.

    docs.docker.com/docker-hub/usage/pulls, 2026-11: "100 per IPv4 address or IPv6 /64 subnet".
    """
    docker_hub_account_pulls: int = Field(default=200, ge=0)
    """Pulls that Docker Hub allows one personal account in six hours (the same page)."""
    docker_hub_accounts: dict[str, str] = Field(default_factory=dict)
    """Accounts of Docker Hub: name -> access token. All other credentials are rejected."""


class Hub(_ScenarioPart):
    """The Hugging Face hub. Its repositories are listed in packages/localcloud/hub/data; these settings change them."""

    repositories: dict[str, State] = Field(default_factory=dict[str, State])
    """Id of a repository -> `public`, `gated`, `private` or `absent`. An id that is neither here nor in the data is absent."""
    readable: tuple[str, ...] = ()
    """Gated and private repositories that every token's account can read because it has accepted their terms."""
    expired_tokens: tuple[str, ...] = ()
    """Tokens that are no longer valid. Every other token that starts with `hf_` is valid."""


class Logging(_ScenarioPart):
    """Cloud Logging."""

    lag_s: Seconds = 5
    """Simulated seconds from the writing of an entry until it can be listed. Google publishes no figure; some seconds are usual.

    0 if operations are instant.
    """


class OperationDurations(_ScenarioPart):
    """Simulated seconds of long-running operations. `instant`: operations and the states of queued resources take no time."""

    instant: bool = False
    compute_s: Seconds = 2
    artifactregistry_s: Seconds = 2
    serviceusage_s: Seconds = 1
    run_s: Seconds = 2
    """For a deployment, in addition to the revision's start."""


class Fault(_ScenarioPart):
    """The `nth` and the following `count` - 1 calls of `method` (a pattern such as `tpu.*.create`) fail."""

    method: str
    nth: int = Field(default=1, ge=1)
    count: int = Field(default=1, ge=1)
    action: Literal["status", "reset", "hang"] = "status"
    status: int = Field(default=503, ge=400, le=599)
    when: Literal["before", "after", "late"] = "before"
    """`after`: the call takes effect, but its response is lost. `late`: it takes effect `late_s` after its response was lost."""
    late_s: Seconds = 300
    """Simulated seconds."""
    hang_s: Seconds = 30
    """Real seconds for which a hanging call stays open before its connection is closed."""


class Scenario(_ScenarioPart):
    """All settings of a scenario. Defaults are the scenario `prepared`: APIs enabled, quota granted."""

    services: Services = Services()
    iam: Iam = Iam()
    tpu: Tpu = Tpu()
    run: Run = Run()
    images: Images = Images()
    hub: Hub = Hub()
    logging: Logging = Logging()
    operations: OperationDurations = OperationDurations()
    faults: tuple[Fault, ...] = ()
    model_server_faults: tuple[ModelServerFault, ...] = ()
    """Faults of every model server that starts from now on."""


class ScenarioError(ValueError):
    """The scenario is invalid. The message is one sentence."""


def parse(value: Any, source: str) -> Scenario:  # noqa: ANN401 - any YAML or JSON value
    """Return the validated scenario. Raises ScenarioError."""
    try:
        return Scenario.model_validate(value or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top level"
        raise ScenarioError(
            f"{source}: {where}: {first['msg']} (given: {first['input']!r}). localcloud/world/scenario.py lists the keys."
        ) from None


def _merged(base: Scenario, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return keys merged over a scenario's: each key of a section, such as `run.cpu_quota`, replaces the base's."""
    found: dict[str, Any] = base.model_dump(mode="json")
    for key, given in changes.items():
        if key == "base":
            continue
        kept = found.get(key)
        found[key] = {**kept, **given} if isinstance(kept, dict) and isinstance(given, dict) else given
    return found


def _built_in() -> dict[str, Scenario]:
    """Return the scenarios of `data/scenarios.json`, which has their sources."""
    table, usual = packaged("localcloud.world", "scenarios.json"), Run().gpu_quota
    quotas = {
        f"{region}/{name}": gpu.new_project_quota
        for name, gpu in gpu_types().items()
        if gpu.new_project_quota != usual
        for region in gpu.regions
    }
    found: dict[str, Scenario] = {}
    for name, changes in filled(table["scenarios"], {**table, "new_project_gpus": quotas}).items():
        found[name] = parse(_merged(found.get(changes["base"], Scenario()), changes), name)
    return found


DEFAULT_WORLD = "new-project"
"""Scenario at the start of the commands, and the base of a file that names no other `base`."""
BUILT_IN = _built_in()


def load(path: Path) -> Scenario:
    """Return the built-in scenario of a name, or a file's changes to the built-in one that its `base` names. Raises ScenarioError."""
    built_in = BUILT_IN.get(str(path))
    if built_in is not None:
        return built_in
    import yaml  # noqa: PLC0415 - a thirtieth of a second, and most clouds have a built-in scenario

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(BUILT_IN)
        raise ScenarioError(
            f"Cannot read {path}: {error.strerror}. Pass --scenario a file or one of {known}."
        ) from None
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path} is not YAML: {str(error).splitlines()[0]}.") from None
    if value is None or isinstance(value, dict):
        value = _on_its_base(cast("dict[str, Any]", value or {}), str(path))
    return parse(value, str(path))


def _on_its_base(changes: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return a file's keys merged over those of the scenario that its `base` names."""
    name = changes.get("base", DEFAULT_WORLD)
    if not isinstance(name, str) or name not in BUILT_IN:
        raise ScenarioError(f"{source}: base is {name!r}, expected one of {', '.join(BUILT_IN)}.")
    return _merged(BUILT_IN[name], changes)
