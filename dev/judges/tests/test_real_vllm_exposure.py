"""What `python -m dev.judges.real_vllm --part exposure` calls a fault. No vLLM is installed here; its answers are those of 0.32.0."""

import pytest
import requests as requests_client

from dev.judges.real_vllm.exposure import (
    CLOSED,
    COMMIT,
    PINNED,
    compare_exposure,
    listening,
    requests,
    statistics,
)
from gemma_serving.planning.settings.vllm_args import SAFETENSORS, VllmOptions, vllm_arguments

ORIGIN = "origin that a response allows"
OPEN, BEHIND, WITH_KEY = (
    {**{one.name: one.wanted.split()[place] for one in requests()}, ORIGIN: origin}
    for place, origin in enumerate(("*", "none", "none"))
)


def test_the_closed_server_gets_what_the_stacks_pass():
    passed = vllm_arguments(VllmOptions(load_format=SAFETENSORS), model_or_path=PINNED, revision=COMMIT)
    assert set(CLOSED) >= set(passed[3:])


def test_the_answers_of_vllm_are_no_fault():
    assert compare_exposure(OPEN, BEHIND, WITH_KEY).faults == []


@pytest.mark.parametrize(
    ("place", "name", "status", "said"),
    [
        (0, "`GET /metrics`", "401", "`GET /metrics`, only an API key: must be 200, but is 401"),
        (1, "`POST /invocations`", "200", "`POST /invocations`, as the stacks start it: must be 401, but is 200"),
        (1, "`GET /health`", "401", "`GET /health`, as the stacks start it: must be 200, but is 401"),
        (2, "`GET /metrics`", "401", "`GET /metrics`, with the key: must be 200, but is 401"),
        (1, ORIGIN, "*", f"{ORIGIN}, as the stacks start it: must be none, but is *"),
    ],
)
def test_an_answer_that_is_otherwise_is_a_fault(place, name, status, said):
    found = [OPEN, BEHIND, WITH_KEY]
    found[place] = {**found[place], name: status}
    assert compare_exposure(*found).faults == [f"exposure: {said}"]


def test_the_listener_receives_reports():
    with listening() as (address, received):
        assert received == []
        assert requests_client.post(address, json={"uuid": "1"}, timeout=10).status_code == 200
        assert received == [{"uuid": "1"}]


@pytest.mark.parametrize(
    ("before", "behind", "said"),
    [
        ([{"uuid": "1"}], [], []),
        ([], [], ["exposure: usage statistics, by default: must be sent, or their absence proves nothing"]),
        ([{}], [{}], ["exposure: usage statistics, as the stacks start it: must be 0, but are 1"]),
    ],
)
def test_statistics_that_are_sent_or_not_seen_at_all_are_a_fault(before, behind, said):
    assert statistics(before, behind).faults == said
