"""The example of each row of `data/refusals.toml` is refused in the words of its row; what is next to a refused start starts."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from localcloud.json_values import packaged
from localcloud.tests.vllm.planned_start import start_of
from localcloud.vllm.arguments import ArgumentError, parse
from localcloud.vllm.places import hub_words
from localcloud.vllm.recorded import find_model
from localcloud.vllm.requests import RequestError, check_items, check_length
from localcloud.vllm.requests import parse as parse_body

TABLE: Mapping[str, list[dict[str, Any]]] = packaged("localcloud.vllm", "refusals.toml")
STARTS = ("arguments", "machine", "weights", "adapters", "memory")
BUCKET = {"words": "gs://b/gemma-4-E2B-it --load-format=runai_streamer", "bucket": ["config.json", "a.safetensors"]}
LORA = "--enable-lora --lora-modules=sql="
STARTED: Mapping[str, Mapping[str, Any]] = {
    "an old driver with libraries": {
        "variables": {"VLLM_SIM_CUDA_DRIVER": "535", "VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}
    },
    "an old driver with CUDA 12": {"variables": {"VLLM_SIM_CUDA_DRIVER": "535", "VLLM_SIM_VERSION": "0.19.1"}},
    "a new driver": {"variables": {"VLLM_SIM_CUDA_DRIVER": "580"}},
    "the first release of the streamer": {**BUCKET, "variables": {"VLLM_SIM_VERSION": "0.11.1"}},
    "a buffer of the largest tensor": {**BUCKET, "variables": {"RUNAI_STREAMER_MEMORY_LIMIT": str(5 * 2**30)}},
    "an adapter": {"words": f"simulated/tiny {LORA}/adapters/sql --max-lora-rank=32", "rank": 32},
    "an adapter of the 12B on a TPU": {
        "words": f"google/gemma-4-12B-it {LORA}org/sql --max-model-len=4096",
        "card": "v6e-4",
    },
}


def error_of_start(given: Mapping[str, Any], folder: Path) -> str:
    """Return what a start refuses, empty if it succeeds."""
    try:
        return str(start_of(given, folder).steps[-1].error or "")
    except ArgumentError as error:
        return str(error)


def error_of_request(kind: str, given: dict[str, Any]) -> str:
    server = {"most_choices": 64, "names": ["m"], "aliases": "m", "enable_auto_tool_choice": False}
    arguments = parse(["vllm", "serve", "m", '--limit-mm-per-prompt={"image": {"count": 2}}'])
    model = find_model("google/gemma-4-31B-it")
    assert model is not None
    try:
        if kind == "items":
            check_items(given["items"], arguments, model)
        elif kind == "lengths":
            body = {"prompt": [1] * given["prompt"], "max_tokens": given["most"]}
            check_length(parse_body(body, is_chat=False, server=server), 512)
        else:
            chat = {} if "prompt" in given else {"messages": [{"role": "user", "content": "Hi."}]}
            parse_body({**chat, **given}, is_chat=bool(chat), server=server)
    except RequestError as error:
        return error.message
    return ""


def cases(*kinds: str) -> list[Any]:
    return [pytest.param(kind, row, id=f"{kind}: {row['name']}") for kind in kinds for row in TABLE[kind]]


def is_said(words: str, said: str) -> bool:
    """Return whether a sentence is that of a row, whose values are unknown here."""
    pattern = re.sub(r"\\\{\w+\\\}", "(?s:.*)", re.escape(words))
    return said != "" and re.fullmatch(pattern, said) is not None and re.search(r"\{\w+\}", said) is None


@pytest.mark.parametrize(("kind", "row"), cases(*STARTS))
def test_a_start_is_refused_in_the_words_of_its_row(kind: str, row: dict[str, Any], tmp_path: Path) -> None:
    said = error_of_start(row["example"], tmp_path)
    assert is_said(row["words"], said), (kind, said)


@pytest.mark.parametrize("case", STARTED)
def test_what_is_next_to_a_refused_start_starts(case: str, tmp_path: Path) -> None:
    assert error_of_start(STARTED[case], tmp_path) == ""


@pytest.mark.parametrize(("kind", "row"), cases(*sorted(TABLE.keys() - {*STARTS, "hub"})))
def test_a_request_is_refused_in_the_words_of_its_row(kind: str, row: dict[str, Any]) -> None:
    said = error_of_request(kind, row["example"])
    assert is_said(row["words"], said), (kind, said)


@pytest.mark.parametrize(("kind", "row"), cases("hub"))
@pytest.mark.parametrize("client", ["server", "command"])
def test_the_hub_s_answer_is_printed_in_the_words_of_its_row(client: str, kind: str, row: dict[str, Any]) -> None:
    said = hub_words(client, model="google/gemma-4-E2B-it", **row["example"])
    assert is_said(row[client], said), (kind, said)
