"""The KV cache in vLLM's layout: pages, blocks, tokens, and how many requests of the maximum length fit.

GPU (vLLM 0.21 and later, v1/kv_cache_interface.py and v1/core/kv_cache_utils.py): full-attention layers hold max-model-len tokens of
a request, sliding layers min(window - 1 + tokens in flight, max-model-len) and one more block, each rounded up to blocks; in flight are
the tokens of one step, or of two (`planning.question.releases.tokens_in_flight`). The larger page of the layer kinds is used for
all; the other kind gets longer blocks, or unused bytes if its page does not divide the larger one (unify_kv_cache_spec_page_size, from 0.24.0 on; a scale
per token and head does that to Gemma 4). Layers form groups of equal size, and a block is one page of each layer of one group. The
tokens that vLLM logs are concurrency x max-model-len. `make -C dev/judges oracle PART=pages` compares layouts with vLLM's own.

TPU (tpu-inference, runner/kv_cache_manager.py and the ragged paged attention kernel): every layer with its own cache stores the full
length. KV heads are padded to the tensor-parallel size; the two numbers of each head are packed into 32-bit words, 2 of bf16 or 4 of
fp8, so fp8 saves nothing if a device has a single KV head.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gemma_serving.planning.data.overheads import TPU_LANES, TPU_WORD_BITS
from gemma_serving.planning.model.spec import LayerGroup
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.settings.vllm_args import SCALED_KV_SUFFIX
from gemma_serving.planning.units import align_to, ceil_div

_KV_SCALE_BYTES: Final = 4
"""Of one token and head, for keys and for values (vLLM's v1/kv_cache_interface.py, AttentionSpec.page_size_bytes)."""


class KvLayers(Struct, frozen=True, kw_only=True):
    """Layers that hold the same number of tokens of a request, in groups."""

    groups: int
    block_size: int
    window: int | None


class KvLayout(Struct, frozen=True, kw_only=True):
    """KV layout of one device."""

    block_bytes: int
    """Bytes of one block as `num_gpu_blocks` counts them."""
    block_size: int
    """Tokens in a block of the kind with the larger page; what `cache_config_info` reports."""
    bytes_per_token: int
    """Bytes per additional token of a long request."""
    kinds: tuple[KvLayers, ...]

    @property
    def holds_full_length(self) -> bool:
        """True if every layer holds all tokens of a request."""
        return len(self.kinds) == 1 and self.kinds[0].window is None


def layout_of(resolved: Resolved) -> KvLayout:
    """Return the layout that vLLM chooses."""
    return _tpu_layout(resolved) if resolved.is_tpu else _gpu_layout(resolved)


def blocks_per_request(layout: KvLayout, *, max_model_len: int, tokens_in_flight: int) -> int:
    """Return the maximum blocks of one request of `max_model_len`."""
    total = 0
    for kind in layout.kinds:
        if kind.window is None:
            total += kind.groups * ceil_div(max_model_len, kind.block_size)
        else:
            held = min(kind.window - 1 + tokens_in_flight, max_model_len)
            total += kind.groups * (ceil_div(held, kind.block_size) + 1)
    return max(total, 1)


def largest_model_len(layout: KvLayout, available_bytes: float, *, tokens_in_flight: int, limit: int) -> int:
    """Return the longest request, at most `limit`, that fits in `available_bytes`; 0 if none does. Exact, as vLLM's own estimate."""
    blocks = int(available_bytes // layout.block_bytes)
    if blocks <= 0:
        return 0
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_per_request(layout, max_model_len=middle, tokens_in_flight=tokens_in_flight) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


def _owners(resolved: Resolved) -> list[LayerGroup]:
    """Return the layers with their own cache. A draft model outside the catalog is assumed to have one; Google's read the served model's."""
    owners = [group for group in resolved.spec.groups if group.owns_kv and group.count > 0]
    if resolved.has_unknown_drafter:
        longest = next((group for group in owners if group.attention.window is None), owners[-1])
        owners.append(replace(longest, count=1))
    return owners


def _gpu_layout(resolved: Resolved) -> KvLayout:
    # Of keys and values, and with scales per token and head, one of each (fp32).
    scale = _KV_SCALE_BYTES if resolved.kv_dtype.endswith(SCALED_KV_SUFFIX) else 0
    counts: dict[tuple[int | None, int], int] = {}
    for group in _owners(resolved):
        attention = group.attention
        heads = max(1, attention.kv_heads // resolved.tp)
        key = (attention.window, 2 * heads * (attention.head_dim * resolved.kv_bytes + scale))
        counts[key] = counts.get(key, 0) + group.count
    windows = {window for window, _ in counts}
    if len(windows) == 1:
        return _one_kind(resolved, sum(count * size for (_, size), count in counts.items()), windows.pop())
    block = resolved.block_size
    page = block * max(size for _, size in counts)
    tokens = {size: block if page % (block * size) else page // size for _, size in counts}
    growing = sum(count * page // tokens[size] for (window, size), count in counts.items() if window is None)
    smallest, largest = min(counts.values()), max(counts.values())
    # vLLM: the smaller kind determines the group size, unless the kinds are nearly equal in number.
    group_size = largest if largest < smallest * 1.5 else smallest
    kinds = tuple(
        KvLayers(groups=ceil_div(count, group_size), block_size=tokens[size], window=window)
        for (window, size), count in counts.items()
    )
    return KvLayout(block_bytes=page * group_size, block_size=block, bytes_per_token=growing, kinds=kinds)


def _tpu_layout(resolved: Resolved) -> KvLayout:
    packing = TPU_WORD_BITS // (8 * resolved.kv_bytes)
    per_token = 0
    for group in _owners(resolved):
        attention = group.attention
        heads = ceil_div(max(attention.kv_heads, resolved.tp), resolved.tp)
        head_bytes = align_to(attention.head_dim, TPU_LANES) * resolved.kv_bytes
        per_token += group.count * align_to(2 * heads, packing) * head_bytes
    return _one_kind(resolved, per_token, None)


def _one_kind(resolved: Resolved, per_token: int, window: int | None) -> KvLayout:
    """Return the layout of layers that all hold the same tokens: one group, whose block is a page of every layer."""
    return KvLayout(
        block_bytes=per_token * resolved.block_size,
        block_size=resolved.block_size,
        bytes_per_token=per_token,
        kinds=(KvLayers(groups=1, block_size=resolved.block_size, window=window),),
    )
