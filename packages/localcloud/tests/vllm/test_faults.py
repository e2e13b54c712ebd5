"""Faults: the client's view of a server that misbehaves on purpose."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud.json_values import packaged
from localcloud.tests.running.running_server import ask, server
from localcloud.vllm.broken_answers import KINDS
from localcloud.vllm.faults import FaultError, PlantedFaults, read_faults

BROKEN = (OSError, http.client.HTTPException)
PROMPT = {"prompt": "x", "max_tokens": 5, "ignore_eos": True}
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "faults.json"


@pytest.fixture(scope="module")
def url(file: Path) -> Iterator[str]:
    around = {"VLLM_SIM_TTFT_S": "0.005", "VLLM_SIM_TPOT_S": "0.002", "VLLM_SIM_FAULTS": str(file)}
    with server(["vllm", "serve", "simulated/tiny"], **around) as address:
        yield address


def plant(file: Path, *faults: dict[str, Any]) -> None:
    file.write_text(json.dumps([{"path": PATH, **fault} for fault in faults]))


def test_each_broken_answer_has_a_public_source_or_is_ours():
    rows: dict[str, dict[str, str]] = packaged("localcloud.vllm", "broken_answers.json")["faults"]
    assert rows.keys() == KINDS.keys()
    assert [row for row in rows.values() if not row["source"].startswith(("ours", "https://github.com/"))] == []


def test_an_error_status_hits_the_requests_that_it_names(url: str, file: Path):
    plant(file, {"status": 429, "nth": 2, "count": 2})
    answers = [ask(f"{url}{PATH}", PROMPT) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 429, 429, 200]
    assert answers[1].json["error"]["type"] == "TooManyRequests"
    assert ask(f"{url}/health").status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_cut_ends_the_answer_without_an_end(url: str, file: Path, stream: bool):
    plant(file, {"cut": 2})
    with pytest.raises(BROKEN):
        ask(f"{url}{PATH}", {**PROMPT, "stream": stream})
    assert ask(f"{url}{PATH}", PROMPT).status == 200


def test_a_silent_server_answers_nothing(url: str, file: Path):
    plant(file, {"silent": True})
    with pytest.raises(TimeoutError):
        ask(f"{url}{PATH}", PROMPT, timeout_s=0.5)


def test_an_answer_and_a_request_break_by_the_names_of_their_faults(url: str, file: Path):
    chat = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "model": "other"}
    plant(file, {"path": "/v1/chat/*", "broken": "lost_model"}, {"path": "/v1/chat/*", "broken": "no_text", "nth": 2})
    assert ask(f"{url}/v1/chat/completions", chat).json["choices"][0]["message"]["content"] == "Paris"
    del chat["model"]
    assert not ask(f"{url}/v1/chat/completions", chat).json["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"path": "/x"}, "a fault of /x has no effect, expected one of status, cut, silent, broken"),
        ({"path": "/x", "status": 500, "cut": 1}, "has status, cut, expected one of"),
        ({"path": "/x", "minutes": 1}, "not of the form .path, nth, count, effect.: .*minutes"),
        ({"path": "/x", "broken": "flood"}, "broken is 'flood', expected one of wrong_type"),
        ({"path": "/x", "silent": True, "nth": 0}, "nth is 0 and count 1"),
    ],
)
def test_a_wrong_fault_is_named(fault: dict[str, Any], says: str):
    with pytest.raises(FaultError, match=says):
        read_faults(json.dumps([fault]))


def test_a_list_in_a_variable_counts_from_the_first_request():
    faults = PlantedFaults('[{"path": "/x", "nth": 2, "status": 503}]')
    assert [getattr(faults.of("/x"), "status", None) for _ in range(3)] == [None, 503, None]
