# pyright: basic, reportMissingImports=false
# ruff: noqa: ANN401, SLF001 - the packages are vLLM's
"""Group the layers of models with vLLM's own code. Run by the Python of vLLM's environment.

`python page_groups.py PAGES.json` prints for each row the bytes of a block and the blocks of one request. The Triton backend, which serves Gemma 4 on most
cards, says how large a page with scales is.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec, get_kv_quant_mode
from vllm.v1.kv_cache_layout import KVCacheLayout

BLOCK = 16


def spec_of(row: dict[str, Any], heads: int, width: int, window: int | None) -> Any:
    """Return the cache of one layer, as the runner asks its backend for it."""
    dtype = row["kv_cache_dtype"]
    number = torch.bfloat16 if dtype == "auto" else torch.uint8
    known = {"block_size": BLOCK, "num_kv_heads": heads, "head_size": width, "dtype": number}
    known["kv_quant_mode"] = get_kv_quant_mode(dtype)
    spec = FullAttentionSpec(**known) if window is None else SlidingWindowSpec(**known, sliding_window=window)
    return TritonAttentionBackend.customize_spec(spec)


def answer(row: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes of a block, and the blocks of one request."""
    specs = {
        f"{group}.{layer}": spec_of(row, heads, width, window)
        for group, (count, heads, width, window) in enumerate(row["layers"])
        for layer in range(count)
    }
    config: Any = SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        model_config=SimpleNamespace(
            max_model_len=row["max_model_len"], hf_text_config=None, hf_config=SimpleNamespace(model_type="gemma4")
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, tensor_parallel_size=row["tp"]),
        # The first of vLLM's layouts; no backend of Gemma 4 asks for another.
        cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        max_in_flight_tokens=row["tokens_in_flight"],
    )
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    block = kv_cache_utils._pool_bytes_per_block(config, groups)
    return block, kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups) // block


if __name__ == "__main__":
    print(json.dumps([answer(row) for row in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))]))
