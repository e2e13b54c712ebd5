"""The limits of an accelerator with a model, on claims that are false and measurements that are true."""

from gemma_serving.scripts.bench.catalog import roofline_of
from loadtest.proof import impossible_reason

# Document 001: 467,825 tokens a second of the 26B MoE on a v6e-4, at 1,024 users and a context of 2,048 tokens.
CLAIMED = {
    "duration": 10.0, "completed": 2283, "total_input_tokens": 2283 * 2048, "total_output_tokens": 2283, "total_token_throughput": 467_800.0,
    "output_throughput": 228.3, "max_concurrent_requests": 1024,
}  # fmt: skip


def test_the_throughput_of_document_001_is_called_impossible_unless_prompts_came_from_the_cache():
    roofline = roofline_of("google/gemma-4-26B-A4B-it", "v6e-4")
    assert roofline is not None
    assert "is impossible on v6e-4" in (impossible_reason(CLAIMED, roofline, cached_tokens=0) or "")
    assert impossible_reason(CLAIMED, roofline, cached_tokens=0.9 * CLAIMED["total_input_tokens"]) is None
