"""Upper limits of an accelerator with a model, from the planner's catalog."""

from typing import Final

from gemma_serving.planning.data.checkpoints import find_checkpoint
from gemma_serving.planning.machine.hardware import find_accelerator
from gemma_serving.planning.model.catalog import spec_of
from gemma_serving.planning.model.spec import tensors
from loadtest.settings import Roofline

BYTES_PER_PARAM: Final = {"bf16": 2.0, "fp8": 1.0, "w4a16": 0.5}
"""Bytes per quantizable weight, without the scales."""
PEAK_GAIN: Final = {"fp8": 2.0, "nvfp4": 4.0, "nvfp4-mlp": 4.0, "nvfp4-experts": 4.0}
"""fp8 matrix units run at twice the bf16 rate if the accelerator has them, fp4 units at four times."""
_MATRICES: Final = frozenset({"attention", "mlp", "experts", "router"})


def roofline_of(model: str, accelerator: str) -> Roofline | None:
    """Return the roofline from the planner's catalog; None if the model or the accelerator is not in it."""
    device, checkpoint = find_accelerator(accelerator), find_checkpoint(model)
    if device is None or checkpoint is None or checkpoint.is_drafter:
        return None
    spec = spec_of(checkpoint.id, None)
    precision = spec.native_quantization or "bf16"
    active = {"matrices": 0.0, "head": 0.0}
    step_bytes = 0.0
    for tensor in tensors(spec):
        read = tensor.params * tensor.active_share
        if tensor.role in _MATRICES and not tensor.copy:
            active["matrices"] += read
        elif tensor.role in {"embedding", "lm-head"}:
            active["head"] += read
        else:
            continue
        step_bytes += read * (BYTES_PER_PARAM.get(precision, 0.5) if tensor.quantizable else 2.0)
    # Layers that share another layer's keys and values skip prompt tokens (vLLM's fast prefill).
    cached = sum(group.count for group in spec.groups if group.owns_kv) / spec.layers
    flops_per_s = device.devices * device.bf16_tflops * 1e12 * PEAK_GAIN.get(precision, 1.0)
    # Two operations per weight and token. Scores and their product with the values: two multiply-adds per element of each head.
    return Roofline(
        model=checkpoint.id,
        accelerator=device.name,
        prompt_tok_per_s=flops_per_s / (2 * active["matrices"] * cached),
        output_tok_per_s=flops_per_s / (2 * (active["matrices"] + active["head"])),
        attention=tuple(
            (
                flops_per_s / (4.0 * group.count * group.attention.heads * group.attention.head_dim),
                group.attention.window,
            )
            for group in spec.groups
            if group.owns_kv
        ),
        steps_per_s=device.devices * device.bandwidth_gb_per_s * 1e9 / step_bytes,
    )
