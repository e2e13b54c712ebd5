"""Accelerators and the platforms that offer them: memory, speed, limits, zones and regions. Prices are in `planning.data.prices`.

gemma_serving/planning/data/machines.json has one row per TPU generation and per card, with its sources (`AcceleratorFamily`).
`usable_gib` is the memory that the driver shows to one process (torch.cuda.mem_get_info, or the TPU runtime's bytes_limit), which is less
than the specification.
A figure that a row lacks is unknown. It is never another row's.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gemma_serving.contracts.collector import GIB_PER_VCPU
from gemma_serving.planning.data.tables import Table, data_file
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.families import (
    FAMILIES,
    AcceleratorFamily,
    AcceleratorKind,
    AcceleratorSize,
    CloudRunGpu,
    Host,
    TpuOffer,
    comparable_name,
    measured_constant,
)

_GENERATIONS: Final[Mapping[str, list[str]]] = Table(lambda: data_file("gpu_generations.json"))
"""Parts of the names of cards, by NVIDIA's architecture."""
_NVLINK_GENERATIONS: Final = ("hopper", "datacenter-blackwell")
"""Generations whose cards of one machine are linked; of Ampere, the A100's are."""
_SHARED_MEMORY: Final = ("GB10", "DGX SPARK")
"""Parts of the names of cards whose memory is the processor's, and was measured."""


class Accelerator(Struct, frozen=True, kw_only=True):
    """A device, and the number of devices in one machine."""

    name: str
    kind: AcceleratorKind
    devices: int
    """Devices that vLLM sees."""
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
    family: str = ""
    """Name of its row in machines.json; empty for a custom device."""
    chips: int = 0
    """TPU chips or GPUs, each billed and counted by quotas."""
    architecture: str = ""
    """NVIDIA's architecture; empty if it follows from the name, and for a TPU."""

    @property
    def is_tpu(self) -> bool:
        """True if it is a TPU."""
        return self.kind == "tpu"

    @property
    def generation(self) -> str:
        """A TPU's family, or NVIDIA's architecture; empty for an unknown card."""
        return self.family if self.is_tpu else self.architecture or _generation_of(self.name.upper())

    @property
    def plan_only(self) -> str:
        """Why this project cannot deploy it although its row is planned, as a clause; empty for all others."""
        return tpu_offer(self).plan_only if self.is_tpu else ""

    def measured(self, name: str) -> float:
        """Return a constant of its family. Raises NotMeasuredError if the family's row has none: no other row's is used."""
        return measured_constant(self.family, name)

    def has_measured(self, name: str) -> bool:
        """Return whether its family's row has a constant."""
        return self.family in FAMILIES and name in FAMILIES[self.family].measured

    @property
    def has_nvlink(self) -> bool:
        """True if several cards of a machine are known to be connected by NVLink, or named so. Others add up their results over PCIe."""
        return self.generation in _NVLINK_GENERATIONS or any(part in self.name.upper() for part in ("A100", "NVLINK"))

    @property
    def shares_memory(self) -> bool:
        """True if its memory is known to be the processor's too, by its name."""
        return any(part in self.name.upper() for part in _SHARED_MEMORY)

    @property
    def is_rocm(self) -> bool:
        """True if it is an AMD GPU, by its name: a custom device such as MI300X."""
        return self.name.upper().removeprefix("AMD ").removeprefix("INSTINCT ").startswith("MI")


@cache
def _generation_of(card: str) -> str:
    return next((one for one, parts in _GENERATIONS.items() if any(part in card for part in parts)), "")


def _accelerators_of(family: AcceleratorFamily) -> Iterator[Accelerator]:
    """Yield each size of a family whose usable memory is known."""
    for size in family.sizes if family.usable_gib is not None else ():
        yield Accelerator(
            name=size.name,
            kind=family.kind,
            devices=size.chips * family.devices_per_chip,
            usable_gib=family.usable_gib or 0.0,
            bandwidth_gb_per_s=family.bandwidth_gb_per_s,
            bf16_tflops=family.bf16_tflops,
            platforms=tuple(size.hosts) or ("tpu-vm" if family.kind == "tpu" else "gce",),
            host_link_gb_per_s=family.host_link_gb_per_s,
            is_large=family.is_large,
            decode_sources=family.decode_sources,
            prefill_sources=family.prefill_sources,
            cloud_run=family.cloud_run if "cloud-run" in size.hosts else CloudRunGpu(),
            source=family.source,
            family=family.name,
            chips=size.chips,
            architecture=family.architecture,
        )


ACCELERATORS: Final[Mapping[str, Accelerator]] = Table(
    lambda: {one.name: one for family in FAMILIES.values() for one in _accelerators_of(family)}
)
"""By name. Slices of 1, 4 and 8 TPU chips are single hosts."""


def why_not_planned(name: str) -> str:
    """Return the facts about a TPU that Google offers and the planner does not support, with a fix; empty for any other name.

    A generation without a usable memory in its row is not planned, nor is a size that its row lacks.
    """
    spelled = comparable_name(name)
    family = next((family for start, family in _spellings() if spelled.startswith(start)), None)
    if family is None or family.tpu is None or not family.sizes:
        return ""
    if family.usable_gib is not None:
        sizes = [size.name for size in family.sizes]
        chips = name.rpartition("-")[2]
        has_hosts = chips.isdecimal() and int(chips) > max(size.chips for size in family.sizes)
        why = "sizes above one host, which this project does not serve" if has_hosts else "no such size"
        return f"{family.title} has {why}. Choose {'one of ' if len(sizes) > 1 else ''}{', '.join(sizes)}"
    one = family.sizes[0]
    return (
        f"{family.title} is not supported: no public vLLM log shows its usable memory. Google offers it in "
        f"{', '.join(family.tpu.zones)}; one host ({one.name}) has {one.chips} chips of {family.hbm_gib or 0:g} GiB "
        f"({family.tpu.source}). Choose one of {', '.join(_tpus())}"
    )


@cache
def _spellings() -> tuple[tuple[str, AcceleratorFamily], ...]:
    """Return each start of a name that means a TPU generation, the longest first."""
    found = [
        (comparable_name(text), family)
        for family in FAMILIES.values()
        if family.tpu is not None
        for text in (family.name, family.tpu.api_name, *family.tpu.spellings)
    ]
    return tuple(sorted(dict(found).items(), key=lambda one: -len(one[0])))


_ALIASES: Final[Mapping[str, str]] = {
    "a100": "a10080gb",
    "h10080gb": "h100",
    "h200141gb": "h200",
}
"""By squashed spelling (`_squashed`), in addition to each accelerator's own name."""


@cache
def find_accelerator(name: str) -> Accelerator | None:
    """Return the accelerator that a spelling means, or None. Case and separators are ignored: V6E1, nvidia-l4, tpu v6e-4, v5litepod-8."""
    known = {comparable_name(one.name): one for one in ACCELERATORS.values()}
    spelled = comparable_name(name).removeprefix("nvidia")
    for text in (spelled, spelled.removeprefix("tpu")):
        found = known.get(_ALIASES.get(text, text))
        for start, family in _spellings():
            if found is None and text.startswith(start):
                found = known.get(comparable_name(family.name) + text.removeprefix(start))
        if found is not None:
            return found
    return None


_SIZES: Final[Mapping[str, AcceleratorSize]] = Table(
    lambda: {size.name: size for family in FAMILIES.values() for size in family.sizes}
)
"""By the accelerator's name."""
_OWN_HOST: Final = Host(vcpu=16, memory_gib=1_024, max_memory_gib=4_096, machine="a custom machine")
"""Its size is unknown: its memory blocks nothing unless it is set."""
_UNKNOWN_HOST: Final = replace(_OWN_HOST, machine="")
"""A host that the row does not have."""


def host_of(accelerator: Accelerator, platform: str) -> Host:
    """Return the default machine or container of the accelerator on this platform."""
    size = _SIZES.get(accelerator.name)
    return _OWN_HOST if size is None or platform == "own" else size.hosts.get(platform, _UNKNOWN_HOST)


CLOUD_RUN_VCPU: Final = (4, 6, 8, 20, 22, 24, 26, 28, 30)
"""Allowed vCPU of an instance with a GPU; each allows CLOUD_RUN_GIB_PER_VCPU of memory (Cloud Run, memory limits)."""
CLOUD_RUN_GIB_PER_VCPU: Final = GIB_PER_VCPU
"""Cloud Run, CPU limits, read in 2026-11: 4 vCPU have 2 to 16 GiB, 6 vCPU 4 to 24 GiB, 8 vCPU 4 to 32 GiB. Above 8 vCPU, which only the
RTX PRO 6000 has, the page has no entry; the same ratio is assumed. Its lower limits are below each GPU's requirement."""


NEW_PROJECT_VCPU: Final = 20
NEW_PROJECT_MEMORY_GIB: Final = 40
"""Cloud Run's quotas of a new project in each region (googlecodelabs/feedback#1856, #1868 and #2311, 2026: allowed 20000 and 42949672960)."""


REVISIONS_AT_AN_UPDATE: Final = 2
"""Revisions whose instances count during an update: the old and the new one (dev/docs/assumptions.md, run-quota-at-an-update)."""


def cloud_run_vcpu(host: Host) -> tuple[int, ...]:
    """Return the vCPU sizes that Cloud Run allows with the GPU of this host."""
    return tuple(vcpu for vcpu in CLOUD_RUN_VCPU if host.min_vcpu <= vcpu <= host.most_vcpu)


CLOUD_RUN_GPUS: Final[Mapping[str, str]] = Table(
    lambda: {one.name: one.cloud_run.name for one in ACCELERATORS.values() if one.cloud_run.name}
)
"""Cloud Run's names of the GPUs that it offers, by the planner's."""
CLOUD_RUN_GPU_NAMES: Final[Mapping[str, str]] = Table(
    lambda: {name: accelerator for accelerator, name in CLOUD_RUN_GPUS.items()}
)
"""The planner's names of these GPUs, by Cloud Run's."""
FAMILY_QUOTA: Final = "TPUS-PER-TPU-FAMILY-per-project-region"
"""Id of the quota of all TPU families for on-demand Compute Engine instances; the family is a dimension."""
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


def tpu_offer(accelerator: Accelerator) -> TpuOffer:
    """Return how Google offers a TPU. Raises PlanningError for an accelerator that is none."""
    offer = FAMILIES[accelerator.family].tpu if accelerator.family in FAMILIES else None
    if offer is None:
        raise PlanningError(f"{accelerator.name} is not a TPU of this project. Choose one of {', '.join(_tpus())}.")
    return offer


def _tpus() -> Iterator[str]:
    return (one.name for one in ACCELERATORS.values() if one.is_tpu and not one.plan_only)


def machine_type_of(accelerator_type: str) -> str:
    """Return the Compute Engine machine type of a slice, by any of its names; empty if its row has none."""
    found = find_accelerator(accelerator_type)
    return _SIZES[found.name].machine_type if found is not None else ""


def machine_types() -> Mapping[str, str]:
    """Return the machine types that this project creates on Compute Engine, by slice."""
    return {name: machine for name in _tpus() if (machine := machine_type_of(name))}


def topology_of(accelerator: Accelerator) -> tuple[str, tuple[int, int, int]]:
    """Return the name of a slice for jax.experimental.topologies and the chips of its host by direction; an empty name if unknown."""
    size = _SIZES.get(accelerator.name)
    return ("", (0, 0, 0)) if size is None else (size.topology, size.chips_per_host)


def image_of(accelerator_type: str, api: str) -> str:
    """Return the image that a machine with a slice boots: a runtime version, or a boot image with `api` compute-engine.

    `accelerator_type` is one of the Cloud TPU API's or of this project's names. Raises PlanningError if the generation's row has none.
    """
    family = family_of_type(accelerator_type)
    offer = family.tpu if family is not None else None
    found = "" if offer is None else offer.boot_image if api == "compute-engine" else offer.runtime_version
    if not found:
        raise PlanningError(
            f"No image is known for {accelerator_type} with api {api}; set runtimeVersion to an image of Google's for this TPU, or choose one of "
            f"{', '.join(_tpus())}."
        )
    return found


def accelerator_of_machine(machine_type: str) -> str:
    """Return the slice of a Compute Engine machine type, by name or URL; empty for one without a known TPU."""
    name = machine_type.rpartition("/")[2]
    return next((size.name for size in _SIZES.values() if name and size.machine_type == name), "")


def known_places(accelerator: Accelerator) -> tuple[str, ...]:
    """Return the zones (TPU) or regions (Cloud Run) known to offer this accelerator: the zones with flex-start, if any is listed."""
    if not accelerator.is_tpu:
        return accelerator.cloud_run.regions
    offer = tpu_offer(accelerator)
    return offer.flex_start_zones or offer.zones


def api_accelerator_type(accelerator_type: str) -> str:
    """Return the Cloud TPU API's name of an accelerator type: "v5litepod-4" for "v5e-4", others unchanged."""
    name, dash, size = accelerator_type.partition("-")
    family = FAMILIES.get(name)
    return accelerator_type if family is None or family.tpu is None else f"{family.tpu.api_name}{dash}{size}"


def family_of_type(accelerator_type: str) -> AcceleratorFamily | None:
    """Return the TPU generation of an accelerator type, by the Cloud TPU API's name or by the project's; None for an unknown one."""
    name = accelerator_type.partition("-")[0]
    return next(
        (one for one in FAMILIES.values() if one.tpu is not None and name in {one.name, one.tpu.api_name}), None
    )
