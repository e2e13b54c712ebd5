"""No secret of a container's output is shown."""

import pytest

from stacks.masking import MASK, masked


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=hf_canary0123456789",
        "downloading with hf_canaryCANARY0123456789 now",
        "Authorization: Bearer canary0123456789",
        "non-default args: {'model_tag': 'm', 'api_key': ['canary0123456789']}",
        '{"password": "canary0123456789", "x": 1}',
        "--api-key=canary0123456789",
        "ya29.canary0123456789",
        "eyJhbGciOi.canary0123456789.x",
        "the secret of the stack: canary-of-the-stack",
    ],
)
def test_a_secret_is_masked(text):
    hidden = masked(text, ["canary-of-the-stack\n", ""])
    assert "canary" not in hidden
    assert MASK in hidden


@pytest.mark.parametrize(
    "text",
    [
        "Maximum concurrency for 8,192 tokens per request: 4.10x",
        "--max-num-batched-tokens=8192",
        "ValueError: max_num_batched_tokens: 8192 is less",
        "PermissionError: [Errno 13] Permission denied: '/mnt/models/gemma/config.json'",
        "tokenizer=google/gemma-4-12B-it",
    ],
)
def test_what_is_no_secret_stays(text):
    assert masked(text, ["", "x"]) == text
