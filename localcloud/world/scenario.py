"""What the simulated world is like: capacity, quota, durations, faults. A YAML or JSON file, or a PUT to the admin API."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

Seconds: TypeAlias = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TpuDurations(_Part):
    """Simulated seconds that each state lasts. The cloud itself promises no figures; these keep the order and a plausible length."""

    creating: Seconds = 5
    accepted: Seconds = 20
    waiting_for_resources: Seconds = 60
    provisioning: Seconds = 60
    suspending: Seconds = 10
    deleting: Seconds = 10
    node_update: Seconds = 5


class TpuZone(_Part):
    """One zone: which accelerator types exist there, whether flex-start is accepted, how many nodes of a type are free, chips of quota."""

    accelerator_types: tuple[str, ...]
    flex_start: bool = False
    capacity: dict[str, int] = Field(default_factory=dict)
    """Free nodes by accelerator type; a type that is not named has plenty."""
    quota_chips: int = 64
    """Chips of on-demand quota."""
    preemptible_quota_chips: int = 64
    """Chips of preemptible quota, on which spot and flex-start draw."""


_V6E = ("v6e-1", "v6e-4", "v6e-8")
_V5E = ("v5litepod-1", "v5litepod-4", "v5litepod-8")
_ZONES = {
    # Zones that accepted flex-start v6e, and two that have the hardware but refused it: reports from the field and Google's TPU flex-start page.
    "us-east5-a": TpuZone(accelerator_types=_V6E, flex_start=True),
    "us-east5-b": TpuZone(accelerator_types=_V6E, flex_start=True),
    "europe-west4-a": TpuZone(accelerator_types=_V6E, flex_start=True),
    "asia-northeast1-b": TpuZone(accelerator_types=_V6E, flex_start=True),
    "southamerica-west1-a": TpuZone(accelerator_types=_V6E, flex_start=True),
    "us-central1-b": TpuZone(accelerator_types=_V6E),
    "us-south1-a": TpuZone(accelerator_types=_V6E + _V5E),
    "us-east1-d": TpuZone(accelerator_types=_V6E),
    "us-central1-a": TpuZone(accelerator_types=_V5E),
    "us-west1-c": TpuZone(accelerator_types=_V5E),
    "us-west4-a": TpuZone(accelerator_types=_V5E, flex_start=True),
    "europe-west4-b": TpuZone(accelerator_types=_V5E),
}


class Tpu(_Part):
    """Cloud TPU."""

    zones: dict[str, TpuZone] = Field(default_factory=lambda: dict(_ZONES))
    runtime_versions: tuple[str, ...] = (
        "v2-alpha-tpuv6e",
        "v2-alpha-tpuv5-lite",
        "tpu-ubuntu2204-base",
        "v2-tpuv5-litepod",
    )
    durations_s: TpuDurations = TpuDurations()
    max_flex_start_run_s: Seconds = 7 * 24 * 3600
    """Flex-start runs last at most seven days (Cloud TPU's flex-start documentation)."""
    accelerate_run_duration: bool = False
    """Whether a run duration passes on the accelerated clock too."""


class Run(_Part):
    """Cloud Run."""

    gpu_regions: dict[str, tuple[str, ...]] = Field(
        default_factory=lambda: {
            "nvidia-l4": ("us-east4", "europe-west1", "europe-west4", "asia-southeast1"),
            "nvidia-rtx-pro-6000": ("us-central1", "europe-west4", "asia-southeast1"),
        }
    )
    """GPU type -> regions (Cloud Run's GPU page; us-central1's L4 is by invitation and therefore left out)."""
    gpu_quota: int = 3
    """GPUs without zonal redundancy, for each project, region and type."""
    gpu_quota_zonal_redundancy: int = 0
    """GPUs with zonal redundancy."""
    gpu_quota_overrides: dict[str, int] = Field(default_factory=dict)
    """`REGION/TYPE` or `REGION/TYPE/zonal` -> GPUs."""


class OperationDurations(_Part):
    """Simulated seconds that long-running operations take; `instant` makes all of them, and the states of queued resources, take none."""

    instant: bool = False
    compute_s: Seconds = 2
    artifactregistry_s: Seconds = 2
    serviceusage_s: Seconds = 1
    run_s: Seconds = 2
    """For a deployment in addition to what the revision needs to become ready."""


class Fault(_Part):
    """The `nth` and the following `count` - 1 calls of `method` (a pattern such as `tpu.*.create`) fail."""

    method: str
    nth: int = Field(default=1, ge=1)
    count: int = Field(default=1, ge=1)
    action: Literal["status", "reset", "hang"] = "status"
    status: int = Field(default=503, ge=400, le=599)
    when: Literal["before", "after"] = "before"
    """`after`: the call takes effect and only its answer is lost."""
    hang_s: Seconds = 30
    """Real seconds for which a hanging call stays open before its connection is cut."""


class Scenario(_Part):
    """Everything that can be set."""

    apis: Literal["enabled"] | tuple[str, ...] = "enabled"
    """`enabled`: every API is enabled in every new project. A list: only these are (plus what is enabled later), and calls to others are refused."""
    tpu: Tpu = Tpu()
    run: Run = Run()
    operations: OperationDurations = OperationDurations()
    latency_ms: Seconds = 0
    """Real milliseconds added to each answer."""
    faults: tuple[Fault, ...] = ()


class ScenarioError(ValueError):
    """The scenario cannot be used; the message is one sentence."""


def parse(value: Any, source: str) -> Scenario:  # noqa: ANN401 - whatever YAML or JSON holds
    """Check a scenario."""
    try:
        return Scenario.model_validate(value or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top level"
        raise ScenarioError(
            f"{source}: {where}: {first['msg']} (given: {first['input']!r}); docs/local-cloud.md lists the keys."
        ) from None


def load(path: Path) -> Scenario:
    """Read a scenario file."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror}).") from None
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: is not YAML ({str(error).splitlines()[0]}).") from None
    return parse(value, str(path))
