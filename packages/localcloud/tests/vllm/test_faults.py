"""Faults: the client's view of a server that misbehaves on purpose."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from localcloud.json_values import packaged
from localcloud.tests.running.running_server import ask, server
from localcloud.vllm.faults import FaultError, InjectedFaults

BROKEN = (OSError, http.client.HTTPException)
PROMPT = {"prompt": "x", "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server(["vllm", "serve", "simulated/tiny"], VLLM_SIM_TTFT_S="0.005", VLLM_SIM_TPOT_S="0.002") as address:
        yield address


def switch_on(url: str, *faults: dict[str, Any]) -> None:
    assert ask(f"{url}/_sim/faults", {"faults": list(faults)}).status == 200


def test_each_kind_of_fault_has_a_public_source_or_is_ours():
    rows = [row for table in packaged("localcloud.vllm", "faults.json").values() for row in table.values()]
    assert [
        row for row in rows if row["source"] != "ours" and not row["source"].startswith("https://github.com/")
    ] == []


def test_an_error_status_strikes_as_often_as_it_is_told(url: str):
    switch_on(url, {"kind": "status", "status": 429, "retry_after_s": 2, "after": 1, "times": 2})
    answers = [ask(f"{url}/v1/completions", PROMPT) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 429, 429, 200]
    assert answers[1].headers["Retry-After"] == "2"
    assert ask(f"{url}/_sim/faults").json == {"faults": []}


def test_a_reset_breaks_the_stream_without_an_end(url: str):
    switch_on(url, {"kind": "reset", "after_tokens": 2, "times": 1})
    with pytest.raises(BROKEN):
        ask(f"{url}/v1/completions", {**PROMPT, "stream": True})
    assert ask(f"{url}/v1/completions", PROMPT).status == 200


def test_a_malformed_event_is_one_bad_event_in_a_whole_stream(url: str):
    switch_on(url, {"kind": "malformed", "after_tokens": 2, "times": 1})
    text = ask(f"{url}/v1/completions", {**PROMPT, "stream": True}).text
    bad = 0
    for line in text.split("\n\n"):
        try:
            json.loads(line.removeprefix("data: "))
        except ValueError:
            bad += line not in ("", "data: [DONE]")
    assert bad == 1
    assert text.endswith("data: [DONE]\n\n")


def test_usage_can_be_missing(url: str):
    switch_on(url, {"kind": "no_usage", "times": 2})
    assert "usage" not in ask(f"{url}/v1/completions", PROMPT).json
    events = ask(
        f"{url}/v1/completions", {**PROMPT, "stream": True, "stream_options": {"include_usage": True}}
    ).events()
    assert all("usage" not in event for event in events)


def test_a_stall_holds_the_stream_back(url: str):
    switch_on(url, {"kind": "stall", "after_tokens": 2, "seconds": 30, "times": 1})
    with pytest.raises(TimeoutError):
        ask(f"{url}/v1/completions", {**PROMPT, "stream": True}, timeout_s=0.5)


def test_a_crash_ends_the_process():
    with server(["vllm", "serve", "simulated/tiny"], VLLM_SIM_FAULTS='[{"kind": "crash", "after": 1}]') as url:
        assert ask(f"{url}/v1/completions", PROMPT).status == 200
        with pytest.raises(BROKEN):
            ask(f"{url}/v1/completions", PROMPT)
        with pytest.raises(BROKEN):
            ask(f"{url}/health")


def test_a_fault_through_a_front_door_is_refused(url: str):
    body = {"faults": [{"kind": "crash"}]}
    assert ask(f"{url}/_sim/faults", body, headers={"X-Forwarded-For": "127.0.0.1"}).status == 404


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"kind": "flood"}, "each fault needs a kind, one of crash, status, stall, reset, malformed, no_usage"),
        ({"kind": "stall", "minutes": 1}, "the fault stall has no key 'minutes'"),
        ({"kind": "stall", "seconds": "long"}, "seconds of the fault stall is 'long'"),
        ({"kind": "status", "status": 200}, "status of the fault is 200"),
    ],
)
def test_a_wrong_fault_is_named_and_changes_nothing(url: str, fault: dict[str, Any], says: str):
    with pytest.raises(FaultError, match=says):
        InjectedFaults([fault])
    switch_on(url)
    answer = ask(f"{url}/_sim/faults", {"faults": [fault]})
    assert answer.status == 400
    assert says in answer.json["error"]["message"]
    assert ask(f"{url}/_sim/faults").json == {"faults": []}


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}]
)
def test_a_web_page_switches_no_faults_on(url: str, headers: dict[str, str]):
    assert ask(f"{url}/_sim/faults", {"faults": [{"kind": "crash"}]}, headers=headers).status == 404
    assert ask(f"{url}/_sim/faults").json == {"faults": []}
