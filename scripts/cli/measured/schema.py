"""The file of a stack: its deployments, the oldest first, each with its plan and everything that was measured of it.

The form is frozen: a change of meaning raises SCHEMA_VERSION. Nothing here may hold an address, a project, a flag's free text or a key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planning.question.types import Band

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What makes figures comparable: the same image, the same settings, and a server of the same kind."""

    image_digest: str
    """`sha256:...` of the image that serves; empty if it is not known."""
    settings_sha256: str
    """Hash of model, accelerator, platform and all vLLM options in effect."""
    simulated: str | None = None
    """Name of the simulator; None for a real server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigures:
    """The plan of a deployment when it was measured. Bands are those of `planning.solve.residuals`."""

    kv_blocks: int
    kv_tokens: int
    startup_s: float
    """From the container's start to the first healthy answer, the image's pull included."""
    serving_start_s: float
    """The same without the pull: weights and compilation."""
    usd_per_hour: float
    decode_tok_per_s: Band
    ttft_s: Band | None = None
    """None if the settings file had changed since `pulumi up`, so that only the stack's outputs were left to plan from."""
    burst_tok_per_s: Band | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BootedFigures:
    """What the server says of itself at /metrics (`cache_config_info`); None for what it does not export."""

    num_gpu_blocks: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    cache_dtype: str | None = None
    kv_tokens: int | None = None
    """The planned tokens times booted blocks over planned blocks: vLLM exports blocks, and logs tokens."""
    start_s: float | None = None
    """From the start of the server's process to its first healthy answer; known if the smoke checks waited for that answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeMeasurement:
    """One run of the smoke checks; None for what was not measured."""

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
    """Requests that were sent per second; None in a closed loop."""
    output_tok_per_s: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    planned_tok_per_s: Band | None = None
    planned_ttft_s: Band | None = None
    planned_tpot_s: Band | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRecord:
    """One deployment: an image with its settings, its plan, and what was measured, the oldest first."""

    identity: Identity
    first_seen: str
    """RFC 3339, UTC."""
    model: str
    accelerator: str
    platform: str
    settings: Mapping[str, object]
    """The vLLM options that decide about memory and speed, by their settings keys."""
    planned: PlannedFigures
    smoke: tuple[SmokeMeasurement, ...] = ()
    bench: tuple[BenchPoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFile:
    """All deployments of a stack that were measured on this machine."""

    schema_version: int
    stack: str
    deployments: tuple[DeploymentRecord, ...] = ()
