"""The limits of an accelerator with a model, on claims that are false and measurements that are true."""

from loadtest.proof import MOST_OF_PEAK, impossible_reason
from scripts.bench.catalog import roofline_of

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


def test_seed_measurements_that_are_real_are_not_called_impossible():
    """Document 000: E2B on v6e-4, 232 requests a second of 8 tokens; document 002: 61.67 tokens a second of the 26B QAT on one L4."""
    tpu, l4 = roofline_of("google/gemma-4-E2B-it", "v6e-4"), roofline_of("google/gemma-4-26B-A4B-it-qat-w4a16-ct", "L4")
    assert tpu is not None
    assert l4 is not None
    figures = {
        "duration": 1.0,
        "completed": 232,
        "total_input_tokens": 1856,
        "total_output_tokens": 232,
        "total_token_throughput": 2088.0,
    }
    assert (
        impossible_reason(
            {**figures, "output_throughput": 232.0, "max_concurrent_requests": 1024}, tpu, cached_tokens=0
        )
        is None
    )
    figures = {
        "duration": 11.2,
        "completed": 1,
        "total_input_tokens": 20,
        "total_output_tokens": 689,
        "total_token_throughput": 63.3,
    }
    assert (
        impossible_reason({**figures, "output_throughput": 61.67, "max_concurrent_requests": 1}, l4, cached_tokens=0)
        is None
    )


def test_a_single_stream_faster_than_memory_is_impossible_without_speculation():
    l4 = roofline_of("google/gemma-4-26B-A4B-it-qat-w4a16-ct", "L4")
    assert l4 is not None
    figures = {
        "duration": 1.0,
        "completed": 1,
        "total_input_tokens": 20,
        "total_output_tokens": 900,
        "total_token_throughput": 920.0,
    }
    said = impossible_reason({**figures, "output_throughput": 900.0, "max_concurrent_requests": 1}, l4, cached_tokens=0)
    assert "without speculative decoding" in (said or "")


def test_what_the_planner_does_not_know_has_no_roofline():
    assert roofline_of("org/other", "L4") is None
    assert roofline_of("google/gemma-4-E2B-it", "abacus") is None
    assert 0.76 < MOST_OF_PEAK < 1
