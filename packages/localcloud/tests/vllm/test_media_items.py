"""Images, sounds and videos: their tokens as vLLM counts them, what is read in them, and vLLM's refusals."""

import base64
import io
import json
import struct
import time
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud.tests.running.running_server import Answer, ask, server
from localcloud.vllm.arguments import ArgumentError, parse
from localcloud.vllm.media_items import Size, audio_tokens_of, color_of, jpeg_images, size_of, soft_tokens_of
from localcloud.vllm.settings import read
from localcloud.vllm.startup import plan

SIZES = ((64, 64), (896, 896), (1920, 1080), (3, 900), (640, 480), (1, 1))
COUNTED = {
    70: (64, 64, 66, 70, 63, 64),
    140: (121, 121, 120, 140, 130, 121),
    280: (256, 256, 264, 280, 266, 256),
    560: (529, 529, 527, 409, 540, 529),
    1120: (1089, 1089, 1100, 579, 1064, 1089),
}
"""Results of _compute_num_soft_tokens of vLLM 0.32.0 (model_executor/models/gemma4_mm.py), run with these sizes."""
SOUNDS = {0.005: 0, 0.5: 13, 1: 25, 3.2: 80, 10: 250, 29.9: 748, 60: 750}
"""The same of _compute_audio_num_tokens, by seconds."""


def png(kind: int, pixel: bytes, *, filter_: int = 0, palette: bytes = b"") -> bytes:
    """A PNG of 8 x 8 equal pixels; a filter other than 0 stores the first pixel and zeros."""
    step = len(pixel)
    first = pixel + (bytes(step * 7) if filter_ == 1 else pixel * 7)
    rows = [bytes([filter_]) + first] * 8
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, kind, 0, 0, 0))]
    parts += [(b"PLTE", palette)] if palette else []
    parts += [(b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def wav(*loud: bool, rate: int = 16_000) -> bytes:
    """A WAV file of parts of 0.2 s, loud or silent."""
    samples = [12_000 * (-1) ** at if part else 0 for part in loud for at in range(rate // 5)]
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, rate, 0, "NONE", ""))
        writer.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return file.getvalue()


def test_an_image_and_a_sound_have_the_tokens_that_vllm_counts():
    for most, counts in COUNTED.items():
        assert tuple(soft_tokens_of(Size(*size), most) for size in SIZES) == counts
    assert {seconds: audio_tokens_of(seconds) for seconds in SOUNDS} == SOUNDS


def test_the_color_is_read_from_the_pixels_of_every_kind_of_png():
    assert color_of(png(2, bytes((20, 60, 220)))) == "blue"
    assert color_of(png(2, bytes((20, 60, 220)), filter_=1)) == "blue"
    assert color_of(png(6, bytes((250, 220, 0, 255)))) == "yellow"
    assert color_of(png(0, bytes((128,)))) == "gray"
    assert color_of(png(3, b"\1", palette=bytes((0, 0, 0, 220, 20, 30)))) == "red"
    assert color_of(b"\x89PNG\r\n\x1a\nbroken") is None
    assert size_of(png(2, bytes(3))) == Size(8, 8)
    assert color_of(b"\xff\xd8\xffbroken") is None
    assert jpeg_images(b"no frames") == []


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    words = ["vllm", "serve", "simulated/tiny", '--limit-mm-per-prompt={"image": {"count": 2}, "audio": 1}']
    with server(words, VLLM_SIM_TTFT_S="0", VLLM_SIM_TPOT_S="0") as address:
        yield address


def of(kind: str, data: bytes, form: str) -> dict[str, Any]:
    text = base64.b64encode(data).decode()
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": text, "format": form}}
    return {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:{kind}/{form};base64,{text}"}}


def about(url: str, question: str, *parts: dict[str, Any], **options: Any) -> Answer:
    content = [*parts, {"type": "text", "text": question}]
    return ask(
        f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 40, **options}
    )


def said(answer: Answer) -> str:
    return answer.json["choices"][0]["message"]["content"]


def prompt_tokens(answer: Answer) -> int:
    return answer.json["usage"]["prompt_tokens"]


def test_a_question_about_the_files_is_answered_from_the_files(url: str):
    blue, red = (of("image", png(2, bytes(color)), "png") for color in ((20, 60, 220), (220, 20, 30)))
    assert said(about(url, "Which colors?", blue, red)) == "blue, red"
    assert said(about(url, "Which colors?", red, blue)) == "red, blue"
    assert said(about(url, "How many beeps?", of("audio", wav(False, True, False, True, True), "wav"))) == "2"
    assert said(about(url, "Which colors?")).startswith("This is a simulated answer")


def test_the_usage_counts_the_items_and_a_request_can_choose_their_size(url: str):
    image, sound = of("image", png(2, bytes(3)), "png"), of("audio", wav(True, True, True, True, True), "wav")
    plain = prompt_tokens(about(url, "?"))
    assert prompt_tokens(about(url, "?", image)) - plain == 258
    assert prompt_tokens(about(url, "?", sound)) - plain == 27
    assert prompt_tokens(about(url, "?", image, mm_processor_kwargs={"max_soft_tokens": 70})) - plain == 66
    refused = about(url, "?", image, mm_processor_kwargs={"max_soft_tokens": 100})
    assert (refused.status, "Valid values are (70, 140, 280, 560, 1120)." in refused.text) == (400, True)


def test_too_many_items_and_unreadable_files_are_refused_with_vllms_messages(url: str):
    image = of("image", png(2, bytes(3)), "png")
    refused = about(url, "?", image, image, image)
    assert (refused.status, refused.json["error"]["message"]) == (
        400,
        "At most 2 image(s) may be provided in one prompt.",
    )
    for part, words in (
        (of("image", b"text", "png"), "Failed to load image: cannot identify image file"),
        (of("audio", b"text", "wav"), "Invalid or unsupported audio file."),
        ({"type": "image_url", "image_url": {"url": "data:image/png,AA"}}, "Only base64 data URLs are supported"),
    ):
        assert words in about(url, "?", part).json["error"]["message"]


def test_a_model_without_an_audio_encoder_refuses_sound():
    with server(["vllm", "serve", "google/gemma-4-31B-it", "--max-model-len", "4096"]) as url:
        refused = about(url, "?", of("audio", wav(True), "wav"))
    assert refused.status == 400
    assert "does not have an audio tower" in refused.json["error"]["message"]


def ask_until_it_ends(url: str) -> None:
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        ask(url)


@pytest.mark.parametrize("kind", ["audio", "video"])
def test_a_sound_or_a_video_ends_a_jax_server_unless_its_limit_is_0(kind: str):
    words = ["vllm", "serve", "google/gemma-4-E2B-it", "--max-model-len", "4096"]
    image, frames = (of(name, png(2, bytes(3)), "png") for name in ("image", "video"))
    item = of("audio", wav(True), "wav") if kind == "audio" else frames
    with server([*words, f'--limit-mm-per-prompt={{"image": 4, "{kind}": 0}}'], VLLM_SIM_ACCELERATOR="v6e-1") as url:
        refused = about(url, "?", item)
        assert (refused.status, refused.json["error"]["param"]) == (400, kind)
        assert about(url, "?", image).status == 200
    with server(words, VLLM_SIM_ACCELERATOR="v6e-1") as url:
        assert about(url, "?", image).status == 200
        died = about(url, "?", item)
        assert (died.status, died.json["error"]) == (
            500,
            {
                "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                "type": "InternalServerError",
                "param": None,
                "code": 500,
            },
        )
        with pytest.raises(OSError, match=r"refused|reset|closed"):
            ask_until_it_ends(f"{url}/health")
    with server(words, VLLM_SIM_ACCELERATOR="nvidia-l4") as url:
        assert about(url, "?", item).status == 200


LORA = ["vllm", "serve", "simulated/tiny", "--lora-modules", "sql=/adapters/sql"]


@pytest.mark.parametrize(
    ("words", "rank", "message"),
    [
        ([*LORA, "--enable-lora"], None, "Loading lora sql failed: No adapter found for /adapters/sql"),
        ([*LORA, "--enable-lora"], 32, "LoRA rank 32 is greater than max_lora_rank 16."),
        (LORA, 8, "LoRA is not enabled. Use --enable-lora to enable LoRA."),
    ],
)
def test_an_adapter_that_vllm_cannot_load_ends_the_start(
    words: list[str], rank: int | None, message: str, tmp_path: Path
):
    folder = tmp_path / "adapters" / "sql"
    folder.mkdir(parents=True)
    if rank is not None:
        (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    start = plan(parse(words), read({"VLLM_SIM_PATHS": json.dumps({"/": str(tmp_path)})}))
    assert message in str(start.steps[-1].error)


@pytest.mark.parametrize(("size", "is_loaded"), [("E2B", False), ("12B", True)])
def test_on_a_tpu_only_the_12b_loads_adapters(size: str, is_loaded: bool):
    words = ["vllm", "serve", f"google/gemma-4-{size}-it", "--enable-lora", "--lora-modules", "sql=org/sql"]
    start = plan(parse([*words, "--max-model-len=4096"]), read({"VLLM_SIM_ACCELERATOR": "v6e-4"}))
    assert (start.capacity is not None) is is_loaded
    assert is_loaded or "Call to add_lora method failed" in str(start.steps[-1].error)


def test_a_rank_that_vllm_does_not_have_is_refused():
    with pytest.raises(ArgumentError, match="Input should be 1, 8, 16, 32, 64, 128, 256, 320 or 512"):
        parse([*LORA, "--enable-lora", "--max-lora-rank", "24"])


def test_an_adapter_is_a_model_with_the_base_as_its_parent(tmp_path: Path):
    folder = tmp_path / "adapters" / "sql"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"r": 32}')
    words = [*LORA, '{"name": "more", "path": "org/adapter"}', "--enable-lora", "--max-lora-rank", "32"]
    with server(words, VLLM_SIM_PATHS=json.dumps({"/": str(tmp_path)})) as url:
        rows = ask(f"{url}/v1/models").json["data"]
        assert [(row["id"], row["root"], row["parent"]) for row in rows] == [
            ("simulated/tiny", "simulated/tiny", None),
            ("sql", "/adapters/sql", "simulated/tiny"),
            ("more", "org/adapter", "simulated/tiny"),
        ]
        assert about(url, "Say hi.", model="sql").json["model"] == "sql"
        assert about(url, "Say hi.", model="other").status == 404
