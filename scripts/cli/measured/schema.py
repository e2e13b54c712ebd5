"""Results file of a stack: its deployments, oldest first, each with its plan and all its measurements.

The format is frozen. A change of meaning raises SCHEMA_VERSION. It must not contain an address, a project, a flag's free text or a key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planning.question.types import Band

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of comparable results (image, settings, and kind of server)."""

    image_digest: str
    """`sha256:...` of the serving image; empty if unknown."""
    settings_sha256: str
    """Hash of model, accelerator, platform and all vLLM options in effect."""
    simulated: str | None = None
    """Name of the simulator; None for a real server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigures:
    """Plan of a deployment at the time of measurement. The bands come from `planning.speed.residuals`."""

    kv_blocks: int
    kv_tokens: int
    serving_start_s: float
    """From the container's start to the first healthy response, without the image pull: weights and compilation."""
    usd_per_hour: float
    decode_tok_per_s: Band
    ttft_s: Band | None = None
    """None if the settings file had changed since `pulumi up`, so that the plan is based on the stack's outputs alone."""
    burst_tok_per_s: Band | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BootedFigures:
    """The server's own report at /metrics (`cache_config_info`). None for a value it does not export."""

    num_gpu_blocks: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    kv_tokens: int | None = None
    """Planned tokens times booted blocks divided by planned blocks, because vLLM exports blocks but only logs tokens."""
    start_s: float | None = None
    """From the start of the server process to its first healthy response. Known if the smoke checks waited for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeMeasurement:
    """One run of the smoke checks. None for values that were not measured."""

    date: str
    """RFC 3339, UTC."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    decode_tok_per_s: float | None = None
    burst_tok_per_s: float | None = None
    burst_requests: int | None = None
    booted: BootedFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPoint:
    """One valid point of a benchmark with prompts of one length."""

    date: str
    input_tokens: int
    output_tokens: int
    users: int | None = None
    """Requests in flight; None in an open loop."""
    rate_per_s: float | None = None
    """Requests sent per second; None in a closed loop."""
    output_tok_per_s: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    planned_tok_per_s: Band | None = None
    planned_ttft_s: Band | None = None
    planned_tpot_s: Band | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRecord:
    """One deployment: an image with its settings, its plan, and its measurements, oldest first."""

    identity: Identity
    first_seen: str
    """RFC 3339, UTC."""
    model: str
    accelerator: str
    platform: str
    settings: Mapping[str, object]
    """The vLLM options that determine memory and speed, by settings key."""
    planned: PlannedFigures
    smoke: tuple[SmokeMeasurement, ...] = ()
    bench: tuple[BenchPoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFile:
    """All measured deployments of a stack on this computer."""

    schema_version: int
    stack: str
    deployments: tuple[DeploymentRecord, ...] = ()
