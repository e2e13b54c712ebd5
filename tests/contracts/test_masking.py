"""No secret of a container's output is shown."""

import base64
import json
import re
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.contracts.masking import _PASSES, MASK, LineMask, masked

CANARY = "canaryCANARY0123456789"
SECRETS = (
    "HF_TOKEN=hf_canary0123456789",
    "downloading with hf_canaryCANARY0123456789 now",
    "Authorization: Bearer canary0123456789",
    "non-default args: {'model_tag': 'm', 'api_key': ['canary0123456789']}",
    '{"password": "canary0123456789", "x": 1}',
    '"{\\"token\\": \\"canary0123456789\\"}"',
    "--api-key=canary0123456789",
    "ya29.canary0123456789",
    "eyJhbGciOi.canary0123456789.x",
    "the secret of the stack: canary-of-the-stack",
    "my-own_API-KEY : canary0123456789",
    "-----BEGIN RSA PRIVATE KEY-----\ncanary0123\ncanary4567\n-----END RSA PRIVATE KEY-----\nand more",
    "-----BEGIN PRIVATE KEY-----\ncanary that is cut off",
    "Authorization: Basic Y2FuYXJ5OmNhbmFyeQ==",  # canary:canary
    "proxy says basic dXNlcjpjYW5hcnk",
    "cloning https://me:canary0123@example.com/x.git",
    "postgres://me:canary@with@at@10.0.0.1:5432/x",
    "GET /o/x?X-Goog-Algorithm=A&X-Goog-Signature=canary0123456789&x=1",
    "https://x.example/?a=1&Signature=canary%2B0123456789",
    "refresh_token 1//0canary-CANARY_0123456789",
    "client GOCSPX-canary_CANARY-0123",
    f"github_pat_{CANARY}_{CANARY}",
    f"glpat-{CANARY}",
    "AWS_KEY AKIACANARY0123456789",
    "hook xoxb-canary-0123456789-CANARY",
    "GITHUB_PAT=canary0123456789",
    "MY_PAT: 'canary0123456789'",
    "AWS_SECRET_ACCESS_KEY=canary/0123456789",
    "PULUMI_CONFIG_PASSPHRASE=canary-0123",
    "password=12345678canary",
    "redirect=https%3A%2F%2Fx%2F%3Fk%3Dsk-canaryCANARY0123456789",
    f"token=prefix{MASK}canary",
    "https://canaryCANARY0123456789@example.com/x.git",
    "https://b.s3.amazonaws.com/k?X-Amz-Security-Token=canary0123&X-Amz-Signature=canary4567",
    "hf_canarycanarycanarycanarycanarycanary",
    f"ghp_{CANARY}{CANARY}",
    f"xai-{CANARY}",
    f"nvapi-{CANARY}-x",
    f"SG.{CANARY}.{CANARY}",
    f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={CANARY}==",
    "Cookie: session=canary0123; theme=canary",
    "{'Set-Cookie': 'sid=canary0123; Path=/'}",
    "alert to https://hooks.slack.com/services/T0CANARY0/B0CANARY0/canary0123456789",
    "alert to https://discord.com/api/webhooks/1234567890/canary-CANARY_0123456789",
    "https://discordapp.com/api/v10/webhooks/1234567890/canary0123456789?wait=true",
    "unable to open bucket postgres://10.0.0.1/x?user=me&password=canary#x",
    "azblob://state?sas_token=canary%26sig, https://x.example/?Pwd=canary&x=1&db-passphrase=canary",
    'parse "postgres://me:can/ary@and/canary@10.0.0.1/x": invalid port ":can" after host',
    "s3://x?accessKey=canary&secret_key=canary",
)
PLAIN = (
    "Maximum concurrency for 8,192 tokens per request: 4.10x",
    "--max-num-batched-tokens=8192",
    "ValueError: max_num_batched_tokens: 8192 is less",
    "PermissionError: [Errno 13] Permission denied: '/mnt/models/gemma/config.json'",
    "tokenizer=google/gemma-4-12B-it",
    "time per output token: 12.3456 ms",
    "time to first token: 1234.5678ms, inter-token: 0.000123",
    "cost per token: 1.2345e-05",
    "Basic authentication is not used; basic Configuration holds",
    "ssh://git@github.com/x/y http://127.0.0.1:8000/v1 http://host:8000,mail",
    "task-0123456789abcdef01234 disk-0123456789abcdef01234",
    "vllm option hf_overrides and hf_config_path",
    "TokensPerSecond: 1234.5678 tokens_per_second=1234.5678 TokensPerSecond=12345678",
    "commit 701cafb9e0d1c2b3a495867768594a3b2c1d0e0f of main, image vllm@sha256:" + "a1" * 32,
    "input token: 1024x1024, output token: 1234567/8192, per token: $0.00001234, token: 12_345_678",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "time per output token: 12.3 ms",
    "cookie: none was sent; cookies are not used, https://discord.com/channels/1/2 and https://hooks.slack.com/",
    "xai-org/grok-1 and nvapi-host, SG.1.2, AccountName=models, dop_v1 is a scheme",
    'gemma-serving:modelConfig = "/etc/passwd": expected a path inside the project',
    'hfTokenSecret = "projects/p/secrets/s/versions/latest": expected a version in Secret Manager',
    'resource "urn:pulumi:x::gemma-serving::gcp:secretmanager/secret:Secret::hf-token" cannot be deleted',
    "urn:pulumi:x::gemma-serving::gemma-serving:index:HuggingFaceToken::hf-token",
    "http://host:8000/v1?mail=a@b https://host:443/a@b gs://bucket/folder@2?prefix=x&pageSize=4&max_tokens=8192",
)
PEM = ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQCcanaryXyZ0123", "canaryShortTail==")


def test_a_secret_is_masked(subtests):
    for text in SECRETS:
        with subtests.test(text):
            hidden = masked(text, ["canary-of-the-stack\n", ""])
            assert "canary" not in hidden.lower()
            assert "Y2FuYXJ5"[2:] not in hidden
            assert MASK in hidden
    assert masked("pul-0a1b2c3d4e5f60718293a4b5c6d7e8f901234567") == MASK
    assert masked(f"dop_v1_{'0a' * 32}") == MASK


ODD = 'kéy/with+"quotes" & 100% of \\signs'


def encoded(value: str) -> dict[str, str]:
    """A value as programs print it."""
    data = value.encode()
    return {
        "plain": value,
        "JSON": json.dumps({"k": value}),
        "JSON without escapes": json.dumps({"k": value}, ensure_ascii=False),
        "JSON with escaped slashes": json.dumps({"k": value}).replace("/", "\\/"),
        "JSON in JSON": json.dumps(json.dumps(value)),
        "URL": f"https://x.example/?k={quote(value, safe='')}&x=1",
        "path of a URL": f"https://x.example/{quote(value)}",
        "form": urlencode({"k": value}),
        "URL in lower case": re.sub("%..", lambda found: found[0].lower(), quote(value, safe="")),
        "base64": base64.b64encode(data).decode(),
        "base64 for URLs": base64.urlsafe_b64encode(data).decode(),
        "base64 after one byte": base64.b64encode(b"u" + data).decode(),
        "base64 between others": base64.b64encode(b"user:" + data + b"\nmore").decode(),
        "hex": data.hex(),
        "HEX": data.hex().upper(),
    }


@pytest.mark.parametrize("value", [CANARY, "short1", ODD, "a/b+c=="])
def test_a_known_value_is_masked_in_each_encoding(value: str, subtests: pytest.Subtests):
    for name, text in encoded(value).items():
        with subtests.test(name):
            hidden = masked(f"value {text} end", [value])
            assert MASK in hidden
            assert hidden.startswith("value ")
            assert hidden.endswith(" end")
            assert not any(
                text[start : start + 12] in hidden
                for start in range(len(text) - 11)
                if is_of(text[start : start + 12], value)
            )


def is_of(part: str, value: str) -> bool:
    """Return whether a part of a text can only come from the value."""
    return part in "".join((value, value.encode().hex(), value.encode().hex().upper(), quote(value, safe="")))


@given(st.text(min_size=6, max_size=40), st.binary(max_size=7), st.binary(max_size=7))
def test_nothing_of_a_value_within_base64_can_be_read(value, before, after):
    value = value.strip()
    whole = base64.b64encode(before + value.encode(errors="replace") + after).decode()
    hidden = masked(whole, [value])
    if len(value) >= 6 and value not in MASK:
        assert MASK in hidden
        left = hidden.partition(MASK)[0]
        assert len(left) <= -(-8 * len(before) // 6)


def test_what_is_no_secret_stays(subtests):
    for text in PLAIN:
        with subtests.test(text):
            assert masked(text, ["", "x", "masked"]) == text


OWN = ("stacks/refusals.golden.txt", "engine/golden/l4-qat.urns", "engine/golden/tpu-v6e4.urns")


@pytest.mark.parametrize("name", OWN)
def test_no_sentence_and_no_name_of_this_project_is_masked(name):
    lines = (Path(__file__).parents[1] / name).read_text(encoding="utf-8").splitlines()
    own = [line for line in lines if name.endswith(".urns") or line.startswith("    ")]  # the others are cases
    assert [line for line in own if masked(line) != line] == []


def test_what_surrounds_a_secret_stays_and_masks_do_not_nest():
    for text, expected in (
        ("HF_TOKEN=hf_canary0123456789", f"HF_TOKEN={MASK}"),
        ("see https://me:canary@example.com/x now", f"see https://me:{MASK}@example.com/x now"),
        ("?X-Goog-Signature=ab12&x=1", f"?X-Goog-Signature={MASK}&x=1"),
        ("args: ['--api-key=canary0123456789', 'x']", f"args: ['--api-key={MASK}', 'x']"),
        ("{'api_key': ['canary0123456789']}", f"{{'api_key': ['{MASK}']}}"),
    ):
        assert masked(text) == expected


PIECES = st.one_of(
    st.sampled_from(
        [*SECRETS, *PLAIN, *PEM, MASK, "token=", "Bearer ", "Basic ", "://a:", "@", "[", "]", "'", "=", " ", "\n"]
    ),
    st.text(max_size=12),
)


@given(st.lists(PIECES, max_size=8).map("".join), st.lists(st.text(max_size=12), max_size=2))
def test_what_is_masked_twice_is_masked_once(text, secrets):
    once = masked(text, [*secrets, "masked", "canary-of-the-stack"])
    assert masked(once) == once


NUMBERS = st.one_of(
    st.integers(0, 10**12).map(str),
    st.integers(0, 10**12).map("{:,}".format),
    st.floats(0, 10**9, allow_nan=False).map("{:.4f}".format),
    st.floats(1e-9, 1e9, allow_nan=False).map("{:.3e}".format),
)
UNITS = st.sampled_from(["", " ms", "ms", "s", " s", "%", " tok/s", "tok/s", "x", "s/iter", " GiB"])
WORDS = st.sampled_from(
    [
        "time per output token: ",
        "TokensPerSecond: ",
        "output token = ",
        "token=",
        "per token: $",
        "max_tokens=",
        "step ",
    ]
)


@given(WORDS, NUMBERS, UNITS)
def test_a_figure_is_never_masked(word, number, unit):
    text = f"{word}{number}{unit}"
    assert masked(text) == text


@given(st.binary(min_size=20, max_size=32).map(bytes.hex), st.sampled_from(["", "sha256:", "commit ", "image@sha256:"]))
def test_a_hash_is_never_masked(digest, before):
    assert masked(f"{before}{digest}") == f"{before}{digest}"


@given(st.text(st.sampled_from("abcXYZ019+/"), min_size=60, max_size=64), st.integers(1, 100), st.text(max_size=20))
def test_a_key_is_masked_however_it_comes(line, lines, after):
    text = "\n".join(["-----BEGIN PRIVATE KEY-----", *[line] * lines, "-----END PRIVATE KEY-----"])
    mask = LineMask()
    by_line = [mask(one) for one in text.split("\n")]
    assert masked(text) == MASK
    assert set(by_line) == {MASK}
    assert mask(after) == masked(after)


def test_a_key_that_comes_line_by_line_is_masked_to_its_last_line():
    lines = ["before", "(x) -----BEGIN PRIVATE KEY-----", *PEM, "-----END PRIVATE KEY----- after", "canary is a bird"]
    mask = LineMask()
    shown = [mask(line) for line in lines]
    assert shown == ["before", f"(x) {MASK}", MASK, MASK, f"{MASK} after", "canary is a bird"]
    assert [LineMask()(line) for line in ("-----BEGIN PRIVATE KEY-----x-----END PRIVATE KEY-----", "y")] == [MASK, "y"]


def test_a_key_whose_first_line_is_not_shown_is_masked():
    assert masked(f"a\n{PEM[0]}\nb") == f"a\n{MASK}\nb"


def test_a_first_line_alone_does_not_hide_a_whole_log():
    mask = LineMask()
    shown = [mask(line) for line in ("-----BEGIN PRIVATE KEY-----", *("line of a log" for _ in range(500)))]
    assert shown[200:] == ["line of a log"] * 301


@pytest.mark.parametrize(
    "word",
    [
        "a-",
        "token-",
        "eyJ",
        "-----BEGIN A ",
        "://a:",
        "://a:b@",
        "basic ",
        "hf_",
        "token=",
        "[",
        "[masked]",
        "a=",
        "&sig=",
        "1//0",
        "token=[",
    ],
)
def test_a_long_line_of_a_stranger_is_searched_in_a_time_that_grows_with_its_length(word):
    """With the square of its length, `a-` takes an hour here and holds a server up that long."""
    text = word * (100_000 // len(word))
    once = masked(text)
    assert masked(once) == once


@pytest.mark.parametrize(("marks", "pattern"), [row[:2] for row in _PASSES if row[0] != ("",)])
@given(st.data())
def test_what_a_pattern_finds_has_a_mark_of_it(marks, pattern, data):
    found = data.draw(st.from_regex(pattern))
    assert any(mark in found.casefold() for mark in marks), found
