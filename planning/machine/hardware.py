"""Accelerators and the platforms that offer them: memory, speed, limits, zones and regions. Prices are in `planning.data.prices`.

planning/data/machines.json has the rows with their sources. `usable_gib` is the memory that the driver shows to one process
(torch.cuda.mem_get_info, or the TPU runtime's bytes_limit), which is less than the specification.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

from msgspec import Struct

from contracts.collector import GIB_PER_VCPU
from planning.data.tables import Table, data_file, row_of

AcceleratorKind = Literal["gpu", "tpu"]


_GENERATIONS: Final[Mapping[str, list[str]]] = Table(lambda: data_file("gpu_generations.json"))
"""Parts of the names of cards, by NVIDIA's architecture."""


class CloudRunGpu(Struct, frozen=True, kw_only=True):
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


class Accelerator(Struct, frozen=True, kw_only=True):
    """A device, and the number of devices in one machine."""

    name: str
    kind: AcceleratorKind
    devices: int
    usable_gib: float
    """Of one device."""
    bandwidth_gb_per_s: float
    """Memory bandwidth of one device, 10^9 bytes per second."""
    bf16_tflops: float
    """Dense bf16 rate of one device."""
    platforms: tuple[str, ...]
    """Platforms, the default first."""
    host_link_gb_per_s: float = 0.0
    """PCIe, one way, per device; 0 if weights cannot be offloaded."""
    is_large: bool = False
    """True if vLLM uses larger batches: 70 GiB or more and not an A100."""
    usd_per_hour: float | None = None
    """Price of all devices, for custom machines without a list price. None if a price list has it, or if unknown."""
    decode_sources: int = 0
    prefill_sources: int = 0
    """Public sources of a time per token, and of a time to the first token, on such devices: none, one, or 2 for more. The test counts them."""
    cloud_run: CloudRunGpu = CloudRunGpu()
    source: str = ""

    @property
    def is_tpu(self) -> bool:
        """True if it is a TPU."""
        return self.kind == "tpu"

    @property
    def generation(self) -> str:
        """NVIDIA's architecture, by the name of the card; empty for a TPU and an unknown card."""
        return "" if self.is_tpu else _generation_of(self.name.upper())

    @property
    def is_v5e(self) -> bool:
        """True if it is a slice of TPU v5e, whose matrix units and hosts differ from v6e's."""
        return self.is_tpu and self.name.startswith("v5e")

    @property
    def is_rocm(self) -> bool:
        """True if it is an AMD GPU, by its name: a custom device such as MI300X."""
        return self.name.upper().removeprefix("AMD ").removeprefix("INSTINCT ").startswith("MI")


@cache
def _generation_of(card: str) -> str:
    return next((one for one, parts in _GENERATIONS.items() if any(part in card for part in parts)), "")


class Host(Struct, frozen=True, kw_only=True):
    """Default machine or container of the devices."""

    vcpu: float
    memory_gib: float
    max_memory_gib: float
    min_vcpu: float = 0
    min_memory_gib: float = 0
    max_vcpu: float = 0
    """0 if the machine always has `vcpu`."""
    has_fast_cores: bool | None = None
    """True for CPUs from 2023 on (Sapphire Rapids, Genoa, Grace, Turin), False for older ones (Compute Engine, CPU platforms); None if unknown."""
    machine: str = ""
    source: str = ""

    @property
    def most_vcpu(self) -> float:
        """Maximum vCPU."""
        return self.max_vcpu or self.vcpu


ACCELERATORS: Final[Mapping[str, Accelerator]] = Table(
    lambda: {
        row["name"]: row_of(Accelerator, row | {"cloud_run": row_of(CloudRunGpu, row.get("cloud_run", {}))})
        for row in data_file("machines.json")["accelerators"]
    }
)
"""By name. Slices of 1, 4 and 8 TPU chips are single hosts."""


def why_not_planned(name: str) -> str:
    """Return the facts about a TPU that Google offers and the planner does not support, with a fix; empty for any other name.

    No log of a vLLM server on one was found, so its usable memory is unknown. Its figures are one chip's on Google's page, read in 2026-11.
    """
    spelled = name.strip().lower()
    for generation, tpu in data_file("machines.json")["named_tpus"].items():
        if spelled.startswith(tuple(tpu["names"])):
            reason = (
                "needs Compute Engine or Google Kubernetes Engine, and this project deploys it with neither"
                if tpu["outside_tpu_api"]
                else "is not supported: no public vLLM log shows its usable memory"
            )
            return (
                f"{generation} {reason}. Google offers it in {', '.join(tpu['zones'])}; one host ({tpu['single_host']}) has "
                f"{tpu['chips_per_host']} chips of {tpu['hbm_gib']:g} GiB ({tpu['source']}). Choose v6e-1, v6e-4 or v6e-8"
            )
    return ""


_ALIASES: Final[Mapping[str, str]] = {
    "a100": "a10080gb",
    "h10080gb": "h100",
    "h200141gb": "h200",
}
"""By squashed spelling (`_squashed`), in addition to each accelerator's own name."""


@cache
def find_accelerator(name: str) -> Accelerator | None:
    """Return the accelerator that a spelling means, or None. Case and separators are ignored: V6E1, nvidia-l4, tpu v6e-4, v5litepod-8."""
    spelled = _squashed(name)
    spelled = spelled.removeprefix("nvidia").removeprefix("tpu").replace("v5litepod", "v5e")
    spelled = _ALIASES.get(spelled, spelled)
    return next((known for known in ACCELERATORS.values() if _squashed(known.name) == spelled), None)


def _squashed(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


_HOSTS: Final[Mapping[str, Host]] = Table(
    lambda: {place: row_of(Host, row) for place, row in data_file("machines.json")["hosts"].items()}
)
"""By accelerator and platform."""
_OWN_HOST: Final = Host(vcpu=16, memory_gib=1_024, max_memory_gib=4_096, machine="a custom machine")
"""Its size is unknown: its memory blocks nothing unless it is set."""


def host_of(accelerator: Accelerator, platform: str) -> Host:
    """Return the default machine or container of the accelerator on this platform."""
    return _OWN_HOST if platform == "own" else _HOSTS[f"{accelerator.name} {platform}"]


CLOUD_RUN_VCPU: Final = (4, 6, 8, 20, 22, 24, 26, 28, 30)
"""Allowed vCPU of an instance with a GPU; each allows CLOUD_RUN_GIB_PER_VCPU of memory (Cloud Run, memory limits)."""
CLOUD_RUN_GIB_PER_VCPU: Final = GIB_PER_VCPU
"""Cloud Run, CPU limits, read in 2026-11: 4 vCPU have 2 to 16 GiB, 6 vCPU 4 to 24 GiB, 8 vCPU 4 to 32 GiB. Above 8 vCPU, which only the
RTX PRO 6000 has, the page has no entry; the same ratio is assumed. Its lower limits are below each GPU's requirement."""


NEW_PROJECT_VCPU: Final = 20
NEW_PROJECT_MEMORY_GIB: Final = 40
"""Cloud Run's quotas of a new project in each region (googlecodelabs/feedback#1856, #1868 and #2311, 2026: allowed 20000 and 42949672960)."""


REVISIONS_AT_AN_UPDATE: Final = 2
"""Revisions whose instances count during an update: the old and the new one (docs/authors/assumptions.md, run-quota-at-an-update)."""


def machines_at_once(renew_before_s: int | None) -> int:
    """Return the machines that exist at the same time, each with its own quota and price: two during a renewal."""
    return 1 if renew_before_s is None else 2


def cloud_run_vcpu(host: Host) -> tuple[int, ...]:
    """Return the vCPU sizes that Cloud Run allows with the GPU of this host."""
    return tuple(vcpu for vcpu in CLOUD_RUN_VCPU if host.min_vcpu <= vcpu <= host.most_vcpu)


CLOUD_RUN_GPUS: Final[Mapping[str, str]] = Table(
    lambda: {one.name: one.cloud_run.name for one in ACCELERATORS.values() if one.cloud_run.name}
)
"""Cloud Run's names of the GPUs that it offers, by the planner's."""
FLEX_START_V6E_ZONES: Final = (
    "us-east5-a",
    "us-east5-b",
    "europe-west4-a",
    "asia-northeast1-b",
    "southamerica-west1-a",
)
"""Zones where flex-start v6e was granted or is documented; available capacity is not implied."""
V5E_ZONES: Final = ("us-central1-a", "us-west4-a", "us-west1-c", "us-south1-a", "europe-west4-b")
"""Zones with v5e (Cloud TPU, regions and zones)."""
FLEX_START_REFUSED_ZONES: Final = ("us-central1-b", "us-south1-a")
"""Zones that have v6e but returned "FLEX_START provisioning model is not supported": reports from the field."""
RUNTIME_VERSIONS: Final[Mapping[str, str]] = {
    "v6e": "v2-alpha-tpuv6e",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
}
"""Runtime image of each TPU generation, by the API's name (Cloud TPU documentation, "TPU software versions")."""
MACHINE_TYPES: Final[Mapping[str, str]] = {
    "v6e-1": "ct6e-standard-1t",
    "v6e-4": "ct6e-standard-4t",
    "v6e-8": "ct6e-standard-8t",
}
"""Compute Engine machine type by slice, with the same host and chips (Compute Engine, "TPU machines"). v5e has one that only GKE may create."""
BOOT_IMAGES: Final[Mapping[str, str]] = {
    "v6e": "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
}
"""Boot image of an instance of each TPU generation (Compute Engine, "Create a TPU VM"). It has no docker; the machine's agent installs it."""
COMPUTE_QUOTAS: Final[Mapping[str, str]] = {
    "flex-start": "PREEMPTIBLE-TPU-V6E-per-project-region",
    "spot": "PREEMPTIBLE-TPU-V6E-per-project-region",
    "standard": "TPUS-PER-TPU-FAMILY-per-project-region",
}
"""Provisioning model -> id of the quota for v6e chips in Compute Engine instances (field report, packages/localcloud/ledger/compute_tpu.toml). The
Cloud TPU API has a separate quota."""
COMPUTE_MAX_WAIT_S: Final = 7200
"""Maximum time that Compute Engine keeps a flex-start request (Google Cloud blog, "Introducing Flex-start VMs", 2025-09-25)."""
MIN_RUN_S: Final = 600
"""Shorter runs expire before a large model is loaded; the TPU API itself accepts any positive duration."""

MIN_BOOT_DISK_GB: Final = 100
"""Default and minimum boot disk size of a TPU VM (Cloud TPU API, bootDiskConfig)."""

CLOUD_RUN_MAX_CONCURRENCY: Final = 1_000
"""Maximum concurrent requests per instance (Cloud Run, maximum concurrent requests)."""
CLOUD_RUN_MAX_INITIAL_DELAY_S: Final = 240
CLOUD_RUN_MAX_PERIOD_S: Final = 240
CLOUD_RUN_MAX_GPU_PROBE_S: Final = 1_800
"""failureThreshold x periodSeconds of a service with a GPU (Cloud Run, container health checks)."""
CLOUD_RUN_MAX_STARTUP_S: Final = CLOUD_RUN_MAX_INITIAL_DELAY_S + CLOUD_RUN_MAX_GPU_PROBE_S
FLEX_START_MAX_RUN_S: Final = 7 * 86_400
"""Maximum lifetime of flex-start nodes is seven days (Cloud TPU documentation, queued resources)."""


def accelerator_of_machine(machine_type: str) -> str:
    """Return the slice of a Compute Engine machine type, by name or URL; empty for one without a known TPU."""
    name = machine_type.rpartition("/")[2]
    return next((kind for kind, machine in MACHINE_TYPES.items() if machine == name), "")


def known_places(accelerator: Accelerator) -> tuple[str, ...]:
    """Return the zones (TPU) or regions (Cloud Run) known to offer this accelerator, with flex-start for a v6e."""
    if not accelerator.is_tpu:
        return gpu_regions(accelerator)
    return FLEX_START_V6E_ZONES if accelerator.name.startswith("v6e") else V5E_ZONES


def gpu_regions(accelerator: Accelerator) -> tuple[str, ...]:
    """Return the regions where Cloud Run is known to offer this GPU; none for a GPU that it does not offer."""
    return accelerator.cloud_run.regions


def api_accelerator_type(accelerator_type: str) -> str:
    """Return the Cloud TPU API's name of an accelerator type: "v5litepod-4" for "v5e-4", others unchanged."""
    return re.sub("^v5e(?=-|$)", "v5litepod", accelerator_type)
