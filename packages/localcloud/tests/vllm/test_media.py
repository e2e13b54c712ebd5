"""Images, sounds and videos: their tokens, and the end of a JAX server. Adapters: their names."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud.tests.running.running_server import Answer, ask, server


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
