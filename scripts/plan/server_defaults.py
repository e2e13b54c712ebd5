"""vLLM's own defaults on a GPU. A log names only flags that are not defaults, and the planner's recommendation would take their place."""

from collections.abc import Mapping
from typing import Final

from planning.data.overheads import VIDEO_TOKENS
from planning.machine.hardware import find_accelerator
from planning.model.catalog import find_id, spec_of
from planning.question.fields import changed, value_at
from planning.question.types import Deployment

_SEQS: Final = {True: 1_024, False: 256}
_BATCHED_TOKENS: Final = {True: 8_192, False: 2_048}
"""By whether the GPU is large (vllm/engine/arg_utils.py, UsageContext.OPENAI_API_SERVER)."""


def with_server_defaults(deployment: Deployment) -> Deployment:
    """Return the deployment with vLLM's defaults for batch and multimodal input where it sets none. A TPU's follow from its platform."""
    accelerator = deployment.device or find_accelerator(deployment.accelerator)
    model_id = find_id(deployment.model)
    if accelerator is None or accelerator.is_tpu or model_id is None:
        return deployment
    whole_items = spec_of(model_id).vision_bidirectional
    batched_tokens = _BATCHED_TOKENS[accelerator.is_large]
    defaults: Mapping[str, object] = {
        "vllm.max_num_seqs": _SEQS[accelerator.is_large],
        "vllm.max_num_batched_tokens": max(batched_tokens, VIDEO_TOKENS) if whole_items else batched_tokens,
        "vllm.disable_chunked_mm_input": whole_items,
    }
    return changed(deployment, {path: value for path, value in defaults.items() if value_at(deployment, path) is None})
