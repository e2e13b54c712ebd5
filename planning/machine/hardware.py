"""Accelerators and the platforms that rent them: memory, speed, limits, places. Prices are in `planning.data.prices`.

Sources by block; `usable_gib` is what the driver shows to one process (torch.cuda.mem_get_info, or the TPU runtime's bytes_limit),
which is less than the box says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

AcceleratorKind = Literal["gpu", "tpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device, and how many of them come together."""

    name: str
    kind: AcceleratorKind
    devices: int
    usable_gib: float
    """Of one device."""
    bandwidth_gb_per_s: float
    """Memory bandwidth of one device, 10^9 bytes a second."""
    bf16_tflops: float
    """Dense bf16 rate of one device."""
    platforms: tuple[str, ...]
    """The usual one first."""
    host_link_gb_per_s: float = 0.0
    """PCIe, one way, per device; 0 where weights cannot be offloaded."""
    is_large: bool = False
    """vLLM gives it larger batches: 70 GiB or more and not an A100."""
    usd_per_hour: float | None = None
    """Price of all devices where no price list has it: of a machine of your own. None if the price list has it, or nobody said."""

    @property
    def is_tpu(self) -> bool:
        """Whether it is a TPU."""
        return self.kind == "tpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine or container around the devices when nothing else was asked for."""

    vcpu: float
    memory_gib: float
    max_memory_gib: float
    min_vcpu: float = 0
    min_memory_gib: float = 0
    max_vcpu: float = 0
    """0 if the machine has `vcpu` and no other number."""
    machine: str = ""

    @property
    def most_vcpu(self) -> float:
        """The most vCPU that it can have."""
        return self.max_vcpu or self.vcpu


# v5e: 16 GB, 819 GB/s, 197 TFLOPS; v6e: 32 GB, 1,638 GB/s, 918 TFLOPS (Cloud TPU documentation, system architecture). Usable memory
# as the runtime reports it at start-up. Slices of 1, 4 and 8 chips are single hosts.
_V5E: Final = {
    "kind": "tpu",
    "usable_gib": 15.75,
    "bandwidth_gb_per_s": 819.0,
    "bf16_tflops": 197.0,
    "platforms": ("tpu-vm",),
}
_V6E: Final = {
    "kind": "tpu",
    "usable_gib": 31.24,
    "bandwidth_gb_per_s": 1_638.0,
    "bf16_tflops": 918.0,
    "platforms": ("tpu-vm",),
}


def _tpu(generation: str, chips: int) -> Accelerator:
    base = _V5E if generation == "v5e" else _V6E
    return Accelerator(name=f"{generation}-{chips}", devices=chips, **base)  # pyright: ignore[reportArgumentType] - a table row


def _l4(name: str, devices: int, platforms: tuple[str, ...]) -> Accelerator:
    # NVIDIA L4 data sheet: 300 GB/s, 121 dense bf16 TFLOPS, PCIe 4.0 x16 (31.5 GB/s one way). On Cloud Run a process sees 21.96 GiB.
    return Accelerator(
        name=name,
        kind="gpu",
        devices=devices,
        usable_gib=21.96,
        bandwidth_gb_per_s=300.0,
        bf16_tflops=121.0,
        host_link_gb_per_s=31.5,
        platforms=platforms,
    )


ACCELERATORS: Final[Mapping[str, Accelerator]] = {
    a.name: a
    for a in (
        *(_tpu("v5e", chips) for chips in (1, 4, 8)),
        *(_tpu("v6e", chips) for chips in (1, 4, 8)),
        _l4("L4", 1, ("cloud-run", "gce")),
        _l4("L4x2", 2, ("gce",)),
        # RTX PRO 6000 Blackwell Server Edition: 96 GB GDDR7, 1,597 GB/s, 503 dense bf16 TFLOPS, PCIe 5.0 (NVIDIA data sheet).
        Accelerator(
            name="RTX PRO 6000",
            kind="gpu",
            devices=1,
            usable_gib=94.97,
            bandwidth_gb_per_s=1_597.0,
            bf16_tflops=503.0,
            host_link_gb_per_s=63.0,
            platforms=("cloud-run", "gce"),
            is_large=True,
        ),
        # A100 80 GB SXM: 2,039 GB/s, 312 TFLOPS; H100 SXM: 3,350 GB/s, 989 TFLOPS; H200: 4,800 GB/s, 989 TFLOPS (NVIDIA data sheets).
        Accelerator(
            name="A100-80GB",
            kind="gpu",
            devices=1,
            usable_gib=79.25,
            bandwidth_gb_per_s=2_039.0,
            bf16_tflops=312.0,
            host_link_gb_per_s=31.5,
            platforms=("gce",),
        ),
        Accelerator(
            name="H100",
            kind="gpu",
            devices=1,
            usable_gib=79.18,
            bandwidth_gb_per_s=3_350.0,
            bf16_tflops=989.0,
            host_link_gb_per_s=63.0,
            platforms=("gce",),
            is_large=True,
        ),
        Accelerator(
            name="H200",
            kind="gpu",
            devices=1,
            usable_gib=139.80,
            bandwidth_gb_per_s=4_800.0,
            bf16_tflops=989.0,
            host_link_gb_per_s=63.0,
            platforms=("gce",),
            is_large=True,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTpu:
    """A TPU generation that Google offers and that the planner does not plan, because no log of a vLLM server on it was found.

    Memory, bandwidth and rate are those of one chip by Google's page, read in 2026-11; what of the memory a process can use is not known.
    """

    names: tuple[str, ...]
    """Beginnings of its types, in lower case."""
    hbm_gib: float
    bandwidth_gb_per_s: float
    bf16_tflops: float
    chips_per_host: int
    single_host: str
    """The type of one host."""
    zones: tuple[str, ...]
    """Zones of the page of regions and zones that were read; there may be more."""
    only_gke: bool
    """Whether neither the Cloud TPU API nor a machine of Compute Engine alone has it."""
    source: str


NAMED_TPUS: Final[Mapping[str, NamedTpu]] = {
    # The size in a type counts TensorCores, two to a chip.
    "v5p": NamedTpu(
        names=("v5p-",),
        hbm_gib=95,
        bandwidth_gb_per_s=2_765,
        bf16_tflops=459,
        chips_per_host=4,
        single_host="v5p-8",
        zones=("us-central1-a", "us-east5-a"),
        only_gke=False,
        source="https://docs.cloud.google.com/tpu/docs/v5p",
    ),
    "TPU7x": NamedTpu(
        names=("tpu7x", "v7x", "tpu-v7x", "ironwood"),
        hbm_gib=192,
        bandwidth_gb_per_s=7_380,
        bf16_tflops=2_307,
        chips_per_host=4,
        single_host="tpu7x-standard-4t",
        zones=("us-central1-c", "us-central1-ai1a"),
        only_gke=True,
        source="https://docs.cloud.google.com/tpu/docs/tpu7x",
    ),
}


def why_not_planned(name: str) -> str:
    """Return what is known of a TPU that Google offers and the planner does not plan, and what to do; empty for any other name."""
    spelled = name.strip().lower()
    for generation, tpu in NAMED_TPUS.items():
        if spelled.startswith(tpu.names):
            reason = (
                "needs Google Kubernetes Engine, which this project does not use"
                if tpu.only_gke
                else "is not planned: no log of vLLM on it is known that shows what it can use of the memory"
            )
            return (
                f"{generation} {reason}. Google offers it in {', '.join(tpu.zones)}; one host ({tpu.single_host}) has {tpu.chips_per_host} chips "
                f"of {tpu.hbm_gib:g} GiB ({tpu.source}). Choose v6e-1, v6e-4 or v6e-8"
            )
    return ""


_ALIASES: Final[Mapping[str, str]] = {
    "rtxpro6000": "RTX PRO 6000",
    "nvidia-l4": "L4",
    "nvidia-rtx-pro-6000": "RTX PRO 6000",
    "a100": "A100-80GB",
    "a100-80gb": "A100-80GB",
    "h100-80gb": "H100",
    "h200-141gb": "H200",
}

PLATFORMS: Final = ("tpu-vm", "cloud-run", "gce")


def find_accelerator(name: str) -> Accelerator | None:
    """Return the accelerator that a spelling means, or None. Case does not matter."""
    spelled = " ".join(name.split()).lower()
    for known in ACCELERATORS.values():
        if known.name.lower() == spelled:
            return known
    alias = _ALIASES.get(spelled) or _ALIASES.get(spelled.replace(" ", "").replace("-", "").replace("_", ""))
    return ACCELERATORS[alias] if alias else None


# Cloud Run: GPU types (limits of vCPU and memory for each GPU); Compute Engine: accelerator-optimized machine families; Cloud TPU:
# VM types of v5e and v6e (host vCPU and memory of a whole host).
_HOSTS: Final[Mapping[tuple[str, str], Host]] = {
    ("L4", "cloud-run"): Host(vcpu=8, memory_gib=32, max_memory_gib=32, min_vcpu=4, min_memory_gib=16, max_vcpu=8),
    ("RTX PRO 6000", "cloud-run"): Host(
        vcpu=20, memory_gib=80, max_memory_gib=176, min_vcpu=20, min_memory_gib=80, max_vcpu=44
    ),
    ("L4", "gce"): Host(vcpu=8, memory_gib=32, max_memory_gib=128, max_vcpu=32, machine="g2-standard-8"),
    ("L4x2", "gce"): Host(vcpu=24, memory_gib=96, max_memory_gib=192, machine="g2-standard-24"),
    ("RTX PRO 6000", "gce"): Host(vcpu=48, memory_gib=180, max_memory_gib=180, machine="g4-standard-48"),
    ("A100-80GB", "gce"): Host(vcpu=12, memory_gib=170, max_memory_gib=170, machine="a2-ultragpu-1g"),
    ("H100", "gce"): Host(vcpu=26, memory_gib=234, max_memory_gib=234, machine="a3-highgpu-1g"),
    ("H200", "gce"): Host(vcpu=28, memory_gib=369, max_memory_gib=369, machine="a3-ultragpu-8g, one of eight"),
    ("v5e-1", "tpu-vm"): Host(vcpu=24, memory_gib=44, max_memory_gib=44),
    ("v5e-4", "tpu-vm"): Host(vcpu=112, memory_gib=188, max_memory_gib=188),
    ("v5e-8", "tpu-vm"): Host(vcpu=224, memory_gib=376, max_memory_gib=376),
    ("v6e-1", "tpu-vm"): Host(vcpu=44, memory_gib=176, max_memory_gib=176),
    ("v6e-4", "tpu-vm"): Host(vcpu=180, memory_gib=720, max_memory_gib=720),
    ("v6e-8", "tpu-vm"): Host(vcpu=180, memory_gib=1_440, max_memory_gib=1_440),
}


_OWN_HOST: Final = Host(vcpu=16, memory_gib=1_024, max_memory_gib=4_096, machine="a machine of your own")
"""Nobody said how large it is: its memory stops nothing unless it is given."""


def host_of(accelerator: Accelerator, platform: str) -> Host:
    """Return the machine or container that the accelerator comes with on this platform."""
    return _OWN_HOST if platform == "own" else _HOSTS[accelerator.name, platform]


CLOUD_RUN_VCPU: Final = (4, 6, 8, 20, 22, 24, 26, 28, 30)
"""vCPU that an instance with a GPU may have; each allows CLOUD_RUN_GIB_PER_VCPU of memory (Cloud Run, memory limits)."""
CLOUD_RUN_GIB_PER_VCPU: Final = 4
"""Cloud Run, CPU limits, read in 2026-11: 4 vCPU have 2 to 16 GiB, 6 vCPU 4 to 24 GiB, 8 vCPU 4 to 32 GiB. Beyond 8 vCPU, which only the
RTX PRO 6000 has, the page says nothing: the same ratio is assumed. Its lower limits are below what each GPU requires."""


NEW_PROJECT_VCPU: Final = 20
NEW_PROJECT_MEMORY_GIB: Final = 40
"""Cloud Run's quotas of a new project in each region (googlecodelabs/feedback#1856, #1868 and #2311, 2026: allowed 20000 and 42949672960)."""


REVISIONS_AT_AN_UPDATE: Final = 2
"""Revisions whose instances count at an update: the old and the new one (docs/authors/assumptions.md, run-quota-at-an-update)."""
GPUS_BY_REQUEST: Final = frozenset({"RTX PRO 6000"})
"""GPUs of Cloud Run of which a new project has none ("new projects often have 0", public notes of 2026). It has three L4."""


def cloud_run_vcpu(host: Host) -> tuple[int, ...]:
    """Return the numbers of vCPU that Cloud Run rents beside the GPU of this host."""
    return tuple(vcpu for vcpu in CLOUD_RUN_VCPU if host.min_vcpu <= vcpu <= host.most_vcpu)


CLOUD_RUN_GPUS: Final[Mapping[str, str]] = {"L4": "nvidia-l4", "RTX PRO 6000": "nvidia-rtx-pro-6000"}
"""GPUs of Cloud Run, as its API and the setting `cloudRun.gpu` name them."""
L4_REGIONS: Final = ("us-east4", "europe-west1", "europe-west4", "asia-southeast1", "us-central1")
RTX_PRO_6000_REGIONS: Final = ("us-central1", "europe-west4", "asia-southeast1")
BY_INVITATION: Final = frozenset({("L4", "us-central1")})
"""GPU and region that Google opens to projects it has invited (Cloud Run, GPU support by region)."""
FLEX_START_V6E_ZONES: Final = (
    "us-east5-a",
    "us-east5-b",
    "europe-west4-a",
    "asia-northeast1-b",
    "southamerica-west1-a",
)
"""Zones where flex-start v6e was granted or is documented; capacity at any moment is another matter."""
V5E_ZONES: Final = ("us-central1-a", "us-west4-a", "us-west1-c", "us-south1-a", "europe-west4-b")
"""Zones with v5e (Cloud TPU, regions and zones)."""
FLEX_START_REFUSED_ZONES: Final = ("us-central1-b", "us-south1-a")
"""Zones that have v6e and answered "FLEX_START provisioning model is not supported": reports from the field."""
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
"""Slice -> machine type of Compute Engine with the same host and chips (Compute Engine, "TPU machines"). v5e has one that only GKE may create."""
BOOT_IMAGES: Final[Mapping[str, str]] = {
    "v6e": "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
}
"""Boot image of an instance of each TPU generation (Compute Engine, "Create a TPU VM"). It has no docker; the machine's agent installs it."""
COMPUTE_QUOTAS: Final[Mapping[str, str]] = {
    "flex-start": "PREEMPTIBLE-TPU-V6E-per-project-region",
    "spot": "PREEMPTIBLE-TPU-V6E-per-project-region",
    "standard": "TPUS-PER-TPU-FAMILY-per-project-region",
}
"""Provisioning model -> id of the quota of v6e chips in instances of Compute Engine (field report, packages/localcloud/ledger/compute_tpu.toml). The
quota of the Cloud TPU API does not count for them."""
COMPUTE_MAX_WAIT_S: Final = 7200
"""Longest time that Compute Engine keeps a flex-start request (Google Cloud blog, "Introducing Flex-start VMs", 2025-09-25)."""
_API_GENERATIONS: Final[Mapping[str, str]] = {"v5e": "v5litepod"}
"""Generations that have another name in the Cloud TPU API than in Google's documentation."""
MIN_RUN_S: Final = 600
"""Shorter runs end before a large model has been loaded; the TPU API itself takes any positive duration."""

MIN_BOOT_DISK_GB: Final = 100
"""Boot disk of a TPU VM, and the size of one that nobody asked for (Cloud TPU API, bootDiskConfig)."""

CLOUD_RUN_MAX_CONCURRENCY: Final = 1_000
"""Requests that one instance may be given at a time (Cloud Run, maximum concurrent requests)."""
CLOUD_RUN_MAX_INITIAL_DELAY_S: Final = 240
CLOUD_RUN_MAX_PERIOD_S: Final = 240
CLOUD_RUN_MAX_GPU_PROBE_S: Final = 1_800
"""failureThreshold x periodSeconds of a service with a GPU (Cloud Run, container health checks)."""
CLOUD_RUN_MAX_STARTUP_S: Final = CLOUD_RUN_MAX_INITIAL_DELAY_S + CLOUD_RUN_MAX_GPU_PROBE_S
FLEX_START_MAX_RUN_S: Final = 7 * 86_400
"""Flex-start nodes live seven days at most (Cloud TPU documentation, queued resources)."""


def accelerator_of_machine(machine_type: str) -> str:
    """Return the slice of a machine type of Compute Engine, given by name or URL; an empty string for one without a TPU that is known."""
    name = machine_type.rpartition("/")[2]
    return next((kind for kind, machine in MACHINE_TYPES.items() if machine == name), "")


def known_places(accelerator: Accelerator) -> tuple[str, ...]:
    """Return the zones (TPU) or regions (Cloud Run) where this accelerator is known to be offered, flex-start for a v6e."""
    if not accelerator.is_tpu:
        return gpu_regions(accelerator)
    return FLEX_START_V6E_ZONES if accelerator.name.startswith("v6e") else V5E_ZONES


def gpu_regions(accelerator: Accelerator) -> tuple[str, ...]:
    """Return the regions where Cloud Run is known to have this GPU."""
    return L4_REGIONS if accelerator.name == "L4" else RTX_PRO_6000_REGIONS


def api_accelerator_type(accelerator_type: str) -> str:
    """Return the Cloud TPU API's name of an accelerator type: "v5litepod-4" for "v5e-4", others as they are."""
    generation, dash, chips = accelerator_type.partition("-")
    return f"{_API_GENERATIONS.get(generation, generation)}{dash}{chips}"
