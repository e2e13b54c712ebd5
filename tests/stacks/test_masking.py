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
        "my-own_API-KEY : canary0123456789",
        "-----BEGIN RSA PRIVATE KEY-----\ncanary0123\ncanary4567\n-----END RSA PRIVATE KEY-----\nand more",
        "-----BEGIN PRIVATE KEY-----\ncanary that is cut off",
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


@pytest.mark.parametrize("word", ["a-", "token-", "eyJ", "-----BEGIN A "])
def test_a_long_line_of_a_stranger_is_searched_in_a_time_that_grows_with_its_length(word):
    """With the square of its length, `a-` takes an hour here and holds a server up that long."""
    text = word * (300_000 // len(word))
    assert masked(text) == text
