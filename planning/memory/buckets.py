"""Batch sizes for which vLLM on TPU compiles programs."""

from planning.data import overheads
from planning.question.resolved import Resolved


def token_buckets(max_tokens: int, padding_gap: int) -> int:
    """Return how many batch sizes vLLM on TPU compiles: doubling from 16 up to the gap, then by the gap (tpu-inference's token paddings)."""
    buckets, size = 1, overheads.XLA_MIN_BUCKET
    while size < max_tokens:
        size = size * 2 if padding_gap == 0 or size < padding_gap else size + padding_gap
        buckets += 1
    return buckets


def buckets_of(resolved: Resolved) -> int:
    """Return how many batch sizes this deployment compiles."""
    return token_buckets(resolved.max_num_batched_tokens, resolved.padding_gap)
