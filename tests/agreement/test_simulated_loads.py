"""Prompts and users on a stack, as planned and on the simulated server's engine: rates and first tokens within the plan's band.

The engine runs on a virtual clock, so the law needs no time of the machine. The loads of `gemma bench` without options are among them.
"""

import csv
from collections.abc import Iterator

import pytest

from gemma_serving.planning.question.types import Band
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.residuals import LEAST_MARGIN, TTFT_MARGIN
from gemma_serving.planning.speed.serving import LoadedServer, server_of, workload_plan
from tests.agreement.simulated_stacks import ROOT, STACKS, Served, served
from tests.agreement.virtual_engine import ClosedLoop
from tests.planning.corpus.traffic import Benchmark

PROMPTS = (64, 2048, 8192)
USERS = (1, 16, 64)
OUTPUT_TOKENS = 256
REQUESTS = 4
"""Requests of each user."""
SHORT = "tpu-v6e1"
"""The stack of the ordinary suite. `make long` has all."""


def loop(prompt_tokens: int, users: int) -> ClosedLoop:
    return ClosedLoop(prompt_tokens=prompt_tokens, output_tokens=OUTPUT_TOKENS, users=users, requests=REQUESTS)


def planned(one: Served, prompt_tokens: int, users: int) -> LoadedServer:
    load = Workload(input_tokens=prompt_tokens, output_tokens=OUTPUT_TOKENS, users=users)
    return server_of(one.subject.resolved, one.subject.memory, load)


def first_token(server: LoadedServer, users: int) -> Band:
    """Return the planned mean time to the first token of users that begin together and send REQUESTS each, on one replica."""
    first_s, _ = Benchmark(rounds=REQUESTS, is_mean=True).times(server, max(users / server.resolved.dp, 1.0))
    return server.band("ttft", first_s)


def loads(one: Served) -> Iterator[tuple[int, int, LoadedServer]]:
    """Yield prompts and users that the stack serves without a queue."""
    longest = one.arguments.max_model_len or 0
    for prompt_tokens in PROMPTS:
        for users in USERS:
            if prompt_tokens + OUTPUT_TOKENS <= longest:
                server = planned(one, prompt_tokens, users)
                if server.all_slots >= users:
                    yield prompt_tokens, users, server


def differences(one: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield what is outside the plan's bands, with the margins of a check of one server (`planning.speed.residuals`)."""
    for prompt_tokens, users, server in loads(one):
        found = loop(prompt_tokens, users).run(one, monkeypatch)
        rate, ttft_s = found.output_tok_per_s, found.ttft_s
        tokens = workload_plan(server, one.subject.cost.usd_per_hour).output_tok_per_s
        first = first_token(server, users)
        low, high = min(tokens.low, tokens.typical * LEAST_MARGIN), max(tokens.high, tokens.typical / LEAST_MARGIN)
        where = f"{prompt_tokens} tokens, {users} users"
        if not low <= rate <= high:
            yield f"rate: {where}: planned {low:.0f} to {high:.0f} tok/s, simulated {rate:.0f}"
        least_s, most_s = min(first.low, first.typical / TTFT_MARGIN), max(first.high, first.typical * TTFT_MARGIN)
        if not least_s <= ttft_s <= most_s:
            yield f"first token: {where}: planned {least_s:.3f} to {most_s:.3f} s, simulated {ttft_s:.3f}"


@pytest.mark.parametrize(
    "stack", [name if name == SHORT else pytest.param(name, marks=pytest.mark.long) for name in STACKS]
)
def test_the_plan_and_the_simulated_server_agree_on_every_prompt_and_load(stack: str, monkeypatch: pytest.MonkeyPatch):
    one = served(stack)
    assert len(list(loads(one))) >= 2
    assert list(differences(one, monkeypatch)) == []


@pytest.mark.parametrize(("stack", "deployment"), [("tpu-v6e1", "sweep-e2b"), ("tpu-v6e1-e4b", "sweep-e4b")])
def test_more_than_the_measured_requests_gain_no_more_than_in_the_public_sweep(
    stack: str, deployment: str, monkeypatch: pytest.MonkeyPatch
):
    """The simulated releases were measured with at most 16 requests, the sweep's with 64."""
    rows = csv.DictReader(
        (ROOT / "tests" / "planning" / "corpus" / "sweeps.csv").read_text(encoding="utf-8").splitlines()
    )
    swept = {
        int(row["users"]): float(row["output_tok_per_s"])
        for row in rows
        if (row["deployment"], row["input_tokens"], row["output_tokens"]) == (deployment, "128", "128")
    }

    def rate(users: int) -> float:
        load = ClosedLoop(prompt_tokens=128, output_tokens=128, users=users, requests=REQUESTS)
        return load.run(served(stack), monkeypatch).output_tok_per_s

    gained = rate(64) / rate(16)
    assert 1 <= gained <= swept[64] / swept[16]
