"""Rows of machines.json: everything about a TPU generation or a card that this project knows, with its sources.

A figure that a row lacks is unknown, and is never another row's.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

from msgspec import Struct, field

from gemma_serving.planning.data.tables import Table, typed_file
from gemma_serving.planning.errors import PlanningError

AcceleratorKind = Literal["gpu", "tpu"]


class CloudRunGpu(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU as Cloud Run offers it: its regions and its quota. `Accelerator.cloud_run` of a device that it does not offer is empty."""

    name: str = ""
    """Its name in the API and in the setting `cloudRun.gpu`."""
    regions: tuple[str, ...] = ()
    """Regions on Cloud Run's page "GPU support by region"."""
    by_invitation: tuple[str, ...] = ()
    """Members of `regions` that Google offers by invitation."""
    new_project_quota: int = 0
    """GPUs of a new project in each region: three L4 (Cloud Run's GPU page); "new projects often have 0" of the others (public notes of 2026)."""
    quota_metric: str = ""
    quota_id: str = ""
    """Prefix of its quotas' ids."""
    quota_units: int = 1
    """Units of the quota per GPU."""


class Host(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Default machine or container of the devices."""

    vcpu: int | float
    memory_gib: int | float
    max_memory_gib: int | float
    min_vcpu: int | float = 0
    min_memory_gib: int | float = 0
    max_vcpu: int | float = 0
    """0 if the machine always has `vcpu`."""
    has_fast_cores: bool | None = None
    """True for CPUs from 2023 on (Sapphire Rapids, Genoa, Grace, Turin), False for older ones (Compute Engine, CPU platforms); None if unknown."""
    machine: str = ""
    source: str = ""

    @property
    def most_vcpu(self) -> float:
        """Maximum vCPU."""
        return self.max_vcpu or self.vcpu


class AcceleratorSize(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine or slice of a family."""

    name: str
    """Name of the accelerator in settings and plans, such as v6e-4."""
    chips: int
    """TPU chips or GPUs, each billed and counted by quotas."""
    hosts: dict[str, Host] = field(default_factory=dict[str, Host])
    """Default machine or container by platform, the default platform first. Empty if its size is unknown."""
    machine_type: str = ""
    """Machine type of Compute Engine that this project creates for a TPU, with the same host and chips; empty without one."""
    topology: str = ""
    """Name of the slice for jax.experimental.topologies; empty if Google's compiler was not asked for it."""
    chips_per_host: tuple[int, int, int] = (0, 0, 0)
    """Chips of the host in each direction of the topology."""


class TpuOffer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Google offers a TPU generation, and how this project asks for it."""

    api_name: str
    """Name of the generation in the Cloud TPU API."""
    title: str = ""
    """Google's name in sentences; empty if it is the family's name."""
    spellings: tuple[str, ...] = ()
    """Other names that a user may write, without separators."""
    apis: tuple[str, ...] = ()
    """Values of the setting `tpu.api` that can create it."""
    provisioning: tuple[str, ...] = ()
    """Provisioning models that Google offers to every project."""
    zones: tuple[str, ...] = ()
    """Zones with the hardware; available capacity is not implied."""
    flex_start_zones: tuple[str, ...] = ()
    """Zones where flex-start was granted or is documented; empty if no zone is listed for this generation."""
    flex_start_refused_zones: tuple[str, ...] = ()
    """Zones with the hardware that returned "FLEX_START provisioning model is not supported"."""
    runtime_version: str = ""
    """Runtime image of the Cloud TPU API; empty if unknown."""
    boot_image: str = ""
    """Boot image of a Compute Engine instance; empty if unknown. It has no docker; the machine's agent installs it."""
    config_type: str = ""
    """Type of the Cloud TPU API's acceleratorConfig; empty if unknown."""
    quota_metric: str = ""
    quota_id: str = ""
    """Metric and prefix of the id of the Cloud TPU API's quotas; empty if unknown."""
    instance_quota_metric: str = ""
    instance_quota_id: str = ""
    """Metric and id of the quota of Compute Engine instances for flex-start and spot; empty if unknown."""
    instance_family: str = ""
    """Family in the quota of on-demand Compute Engine instances; empty if unknown."""
    default_batched_tokens: int | None = None
    """vLLM's own max-num-batched-tokens on it (engine/arg_utils.py); None if its table does not name the generation."""
    plan_only: str = ""
    """Why this project cannot deploy it, as a clause; empty if it can."""
    source: str = ""


class Measured(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constant that was measured on a family, or is stated to be assumed for it."""

    value: float
    unit: str
    what: str
    fitted_to: str


class AcceleratorFamily(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of machines.json: a TPU generation or a card, with all its sizes."""

    name: str
    kind: AcceleratorKind
    sizes: tuple[AcceleratorSize, ...]
    bandwidth_gb_per_s: float
    bf16_tflops: float
    usable_gib: float | None = None
    """Of one device, as the other figures; None if unknown: then no deployment is planned on it."""
    hbm_gib: float | None = None
    """Specified memory of one TPU chip; the driver shows less."""
    devices_per_chip: int = 1
    """Devices that JAX shows for one chip."""
    architecture: str = ""
    """NVIDIA's architecture of a card, as in gpu_generations.json."""
    host_link_gb_per_s: float = 0.0
    is_large: bool = False
    decode_sources: int = 0
    prefill_sources: int = 0
    cloud_run: CloudRunGpu = CloudRunGpu()
    tpu: TpuOffer | None = None
    measured: dict[str, Measured] = field(default_factory=dict[str, Measured])
    source: str = ""

    @property
    def title(self) -> str:
        """Its name in sentences."""
        return (self.tpu.title if self.tpu else "") or self.name


FAMILIES: Final[Mapping[str, AcceleratorFamily]] = Table(
    lambda: {one.name: one for one in typed_file("machines.json", tuple[AcceleratorFamily, ...])}
)
"""Rows of machines.json by name."""


class NotMeasuredError(PlanningError):
    """A constant was never measured on a family, so each figure that needs it is unknown. `constant` is its name."""

    def __init__(self, family: str, constant: str) -> None:
        """Take the name of the family and of the constant."""
        super().__init__(f"{constant} was not measured on {family or 'this accelerator'}.")
        self.constant = constant


@cache
def measured_constant(family: str, name: str) -> float:
    """Return a constant that was measured on a family. Raises NotMeasuredError if its row has none."""
    found = FAMILIES[family].measured.get(name) if family in FAMILIES else None
    if found is None:
        raise NotMeasuredError(family, name)
    return found.value


def comparable_name(name: str) -> str:
    """Return a name in lower case without separators, as spellings are compared."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
