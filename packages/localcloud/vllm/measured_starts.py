"""Measured starts of real servers (`data/starts.json`), and the resulting start of a simulated one.

A model without a measured boot on its accelerator has the median of the boots that are most like it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Final

from localcloud.json_values import JsonObject, packaged, parts
from localcloud.vllm.models import Model, SimulatedAccelerator, find_accelerator, find_model

WARM_UP_GPU_S: Final = 4.03
"""Warm-up in the compile time of a GPU: measured on an L4, with 98.93 s of compilation."""
HUB_MB_PER_S: Final = 1_000.0
"""Download in the loading time of a TPU: 10.2 GB in 9.70 s and 16 GB in 12.87 s (the boots e2b-text-v6e-1 and e4b-text-v6e-1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBoot:
    """One boot with an empty compile cache. Times are None if its log has none."""

    model: Model
    is_w4a16: bool
    accelerator: SimulatedAccelerator
    layers: int
    compile_s: float | None
    programs: int
    load_s: float | None


@cache
def _boots() -> tuple[MeasuredBoot, ...]:
    return tuple(_boot(row) for row in parts(packaged("localcloud.vllm", "starts.json"), "boots"))


def _boot(row: JsonObject) -> MeasuredBoot:
    model, accelerator = find_model(row["model"]), find_accelerator(row["accelerator"])
    if model is None or accelerator is None:
        raise ValueError(f"starts.json, boot {row['id']}: the simulator does not support its model or accelerator")
    return MeasuredBoot(
        model=model,
        is_w4a16=row["scheme"] == "w4a16",
        accelerator=accelerator,
        layers=row["layers"],
        compile_s=row.get("compile_s"),
        programs=row.get("programs", 1),
        load_s=row.get("load_s"),
    )


def program_s(model: Model, accelerator: SimulatedAccelerator) -> float:
    """Return the seconds to compile one XLA program of a model on a TPU."""
    boots = [boot for boot in _boots() if boot.accelerator.kind == "tpu" and boot.compile_s is not None]
    return median((boot.compile_s or 0.0) / boot.programs for boot in _nearest(boots, model, accelerator))


def tpu_load_mb_per_s(model: Model, accelerator: SimulatedAccelerator) -> float:
    """Return the rate at which a TPU reads a model after its download, from the rates of measured loads."""
    boots = [boot for boot in _boots() if boot.accelerator.kind == "tpu" and boot.load_s is not None]
    return median(_rate(boot) for boot in _nearest(boots, model, accelerator))


def gpu_engine_s(model: Model, accelerator: SimulatedAccelerator) -> float:
    """Return the seconds of a GPU's compilation and warm-up: the model's, or of another by its layers."""
    boots = [boot for boot in _boots() if boot.accelerator.kind != "tpu" and boot.compile_s is not None]
    nearest = _nearest(boots, model, accelerator)
    return median((boot.compile_s or 0.0) * model.layers / boot.layers for boot in nearest)


def _rate(boot: MeasuredBoot) -> float:
    megabytes = boot.model.disk_bytes / 1e6
    return megabytes / ((boot.load_s or 0.0) - megabytes / HUB_MB_PER_S)


def _nearest(boots: Sequence[MeasuredBoot], model: Model, accelerator: SimulatedAccelerator) -> Sequence[MeasuredBoot]:
    """Return the boots that are most like a server: accelerator, model and bits, then without the model, then without the accelerator."""
    bits = [boot for boot in boots if boot.is_w4a16 == model.is_w4a16] or list(boots)
    here = [boot for boot in bits if generation_of(boot.accelerator) == generation_of(accelerator)] or bits
    return [boot for boot in here if _size(boot.model) == _size(model)] or here


def generation_of(accelerator: SimulatedAccelerator) -> str:
    """Return a TPU's generation, such as `v6e`, or another accelerator's name."""
    return accelerator.name.removeprefix("TPU ").partition("-")[0] if accelerator.kind == "tpu" else accelerator.name


def _size(model: Model) -> str:
    return model.name.removesuffix("-qat-w4a16")
