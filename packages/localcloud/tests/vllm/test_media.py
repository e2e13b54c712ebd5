"""Images, sounds and videos: their tokens, and vLLM's refusals. Adapters: what cannot be loaded, and their names."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud.tests.running.running_server import Answer, ask, server
from localcloud.vllm.arguments import ArgumentError, parse
from localcloud.vllm.boot import plan
from localcloud.vllm.settings import read


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    words = ["vllm", "serve", "simulated/tiny", '--limit-mm-per-prompt={"image": {"count": 2}, "audio": 1}']
    with server(words, VLLM_SIM_TTFT_S="0", VLLM_SIM_TPOT_S="0") as address:
        yield address


def of(kind: str) -> dict[str, Any]:
    return {f"{kind}_url": {"url": f"data:{kind}/x;base64,AAAA"}, "type": f"{kind}_url"}


def about(url: str, question: str, *parts: dict[str, Any], **options: Any) -> Answer:
    content = [*parts, {"type": "text", "text": question}]
    return ask(
        f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 40, **options}
    )


def prompt_tokens(answer: Answer) -> int:
    return answer.json["usage"]["prompt_tokens"]


def test_the_usage_counts_the_items_and_a_request_can_choose_their_size(url: str):
    plain = prompt_tokens(about(url, "?"))
    assert [prompt_tokens(about(url, "?", of(kind))) - plain for kind in ("image", "audio", "video")] == [
        282,
        752,
        2496,
    ]
    assert prompt_tokens(about(url, "?", of("image"), mm_processor_kwargs={"max_soft_tokens": 70})) - plain == 72
    refused = about(url, "?", of("image"), mm_processor_kwargs={"max_soft_tokens": 100})
    assert (refused.status, "Valid values are (70, 140, 280, 560, 1120)." in refused.text) == (400, True)


def test_too_many_items_are_refused_with_vllms_message(url: str):
    refused = about(url, "?", *[of("image")] * 3)
    assert (refused.status, refused.json["error"]["message"]) == (
        400,
        "At most 2 image(s) may be provided in one prompt.",
    )


def test_a_model_without_an_audio_encoder_refuses_sound():
    with server(["vllm", "serve", "google/gemma-4-31B-it", "--max-model-len", "4096"]) as url:
        refused = about(url, "?", of("audio"))
    assert refused.status == 400
    assert "does not have an audio tower" in refused.json["error"]["message"]


def ask_until_it_ends(url: str) -> None:
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        ask(url)


@pytest.mark.parametrize("kind", ["audio", "video"])
def test_a_sound_or_a_video_ends_a_jax_server_unless_its_limit_is_0(kind: str):
    words = ["vllm", "serve", "google/gemma-4-E2B-it", "--max-model-len", "4096"]
    image, item = of("image"), of(kind)
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
