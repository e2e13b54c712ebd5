import asyncio
import itertools
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import SmokeThresholds, StackOutputs
from gemma_serving.scripts.smoke import checks_basic, checks_exposure, checks_features, checks_server, checks_tools
from gemma_serving.scripts.smoke.chat_request import compared
from gemma_serving.scripts.smoke.checks import AGENT_CHECKS, CHECKS, PLAN_CHECK, _run_one, run_smoke
from gemma_serving.scripts.smoke.context import CheckContext, SmokeCheck, SmokeTarget
from gemma_serving.scripts.smoke.render import summary, to_json
from gemma_serving.scripts.smoke.results import FinishedCheck, Outcome, SmokeReport, passed
from gemma_serving.scripts.stack.access import AccessError, IdTokenSource, ServerAccess
from loadtest.client.events import ChatMessage, ToolCall
from loadtest.client.openai import OpenAIClient
from tests.answers import served as answering_with
from tests.scripts.sample_outputs import sample_outputs
from tests.scripts.smoke.conftest import EACH, serving
from tests.scripts.smoke.test_features import FEATURES

PAGE = Path(__file__).parents[3] / "docs" / "smoke.md"


def planned_memory(blocks):
    plan = from_json(StackOutputs, sample_outputs()).plan
    return replace(plan.memory, kv_blocks=blocks)


TARGET = SmokeTarget(
    model="simulated/tiny",
    thresholds=SmokeThresholds(
        # Limits that a busy machine meets too: a stall of seconds is not a server failure.
        startup_budget_s=60,
        max_ttft_s=30.0,
        min_decode_tok_per_s=1.0,
        min_burst_tok_per_s=1.0,
        max_model_len=8192,
    ),
    cache_options={"block_size": "16", "cache_dtype": "auto"},
)


@pytest.fixture
def url(served):
    return served.url


def smoke(url, target=TARGET, access=None, only=None):
    said = []
    names = None if only is None else {"ready", "served model", only}
    checks = CHECKS if names is None else tuple(check for check in (*CHECKS, *AGENT_CHECKS) if check.name in names)
    report = run_smoke(access or ServerAccess(base_url=url, auth="none"), target, said.append, checks=checks)
    return report, {check.name: check.outcome for check in report.checks}, said


def outcome_of(url, only, target=TARGET, access=None):
    """Return the outcome of one check."""
    return smoke(url, target, access, only)[1][only]


def test_what_is_too_slow_fails_and_says_by_how_much(url):
    slow = replace(
        TARGET,
        thresholds=replace(TARGET.thresholds, max_ttft_s=0.001, min_decode_tok_per_s=1e9, min_burst_tok_per_s=1e9),
    )
    checks = {name: outcome_of(url, name, slow) for name in ("single stream", "burst")}
    assert [check.state for check in checks.values()] == ["failed", "failed"]
    speed = checks["single stream"].values
    over_s, short = speed["ttft_s"] - 0.001, 1e9 - speed["decode_tok_per_s"]
    said = re.fullmatch(r"TTFT (.*) s \(\d+%\) over; (.*) tok/s \(100%\) short", checks["single stream"].detail)
    assert said is not None, checks["single stream"].detail
    # The sentence is rounded from the measurement, and the values are rounded once before: a half may go either way.
    assert float(said[1]) == pytest.approx(over_s, abs=0.00051)
    assert float(said[2]) == pytest.approx(short, abs=0.051)
    assert "%) short" in checks["burst"].detail


def test_another_model_ends_the_checks_that_need_the_right_one(url):
    report, checks, _ = smoke(url, replace(TARGET, model="gemma"))
    assert checks["served model"].state == "failed"
    assert checks["served model"].measured == "simulated/tiny, sql, poems"
    assert checks["chat"].state == "not run"
    assert report.exit_code == 1


def test_a_server_that_never_gets_ready_costs_its_budget_and_no_more():
    report, checks, said = smoke(
        "http://127.0.0.1:9", replace(TARGET, thresholds=replace(TARGET.thresholds, startup_budget_s=2.5))
    )
    assert checks["ready"].state == "failed"
    assert "GET /health failed" in checks["ready"].detail
    assert len(report.checks) == len(CHECKS)
    assert any("waiting for the server" in line for line in said)


def test_a_server_that_has_failed_for_good_is_not_waited_for(monkeypatch):
    """Its budget is longer than any test may take: the check ends by the failure, or the test does not end."""
    monkeypatch.setattr(checks_basic, "FAILURE_PERIOD_S", 0.0)
    told = iter([None, "the server failed: out of memory."])
    thresholds = replace(TARGET.thresholds, startup_budget_s=36_000)
    _, checks, _ = smoke(
        "http://127.0.0.1:9", replace(TARGET, thresholds=thresholds, failure=lambda: next(told)), only="ready"
    )
    assert checks["ready"].state == "failed"
    assert checks["ready"].detail == "the server failed: out of memory."
    assert next(told, "asked twice") == "asked twice"


@pytest.mark.parametrize(
    ("access", "words"),
    [
        pytest.param({"behind_front_end": True}, "cannot connect to Google's front end", id="no network"),
        pytest.param({"is_open": lambda: False}, "the tunnel closed: GET /health failed", id="no tunnel"),
        pytest.param({"id_tokens": IdTokenSource("x", lambda _: no_token())}, "no identity token", id="no token"),
    ],
)
def test_a_server_that_is_not_reached_is_not_one_that_failed(access, words):
    target = replace(TARGET, thresholds=replace(TARGET.thresholds, startup_budget_s=0.5))
    nowhere = ServerAccess(base_url="http://127.0.0.1:9", auth="none", **access)
    report, checks, _ = smoke(nowhere.base_url, target, nowhere)
    assert checks["ready"].state == "unknown"
    assert words in checks["ready"].detail
    assert checks["chat"].state == "not run"
    assert (report.verdict, report.exit_code, report.passed, report.failed) == ("unreachable", 2, False, ())
    assert to_json(report)["verdict"] == "unreachable"
    assert "its health is unknown" in summary(report)


def no_token():
    raise AccessError("no identity token for x")


def test_options_that_did_not_take_effect_fail_and_a_different_cache_warns(url):
    table = (
        ({"cache_options": {"block_size": "32"}}, "failed", "block_size is 16, planned 32"),
        ({"memory": planned_memory(2**40), "cache_options": {}}, "warned", "100% fewer than planned"),
        ({"replicas": 4}, "failed", "4 engines (`vllm.dataParallelSize`), but 1 export metrics"),
    )
    for changes, state, words in table:
        outcome = outcome_of(url, "options in effect", replace(TARGET, **changes))
        assert (outcome.state, words in outcome.detail) == (state, True), outcome


def test_a_shorter_max_model_len_than_promised_fails(url):
    longer = replace(TARGET, thresholds=replace(TARGET.thresholds, max_model_len=16384))
    outcome = outcome_of(url, "max-model-len", longer)
    assert (outcome.state, "-8192 tokens" in outcome.detail) == ("failed", True)


def test_a_prompt_over_the_limit_that_is_not_refused_fails(url):
    async def run():
        async with OpenAIClient(url) as client:
            context = context_of(client, thresholds=replace(TARGET.thresholds, max_model_len=None))
            context.max_model_len = 2048
            return await checks_features.max_model_len(context)

    outcome = asyncio.run(run())
    assert (outcome.state, "was not rejected" in outcome.detail) == ("failed", True)


def test_a_server_that_should_be_private_and_is_not_fails(url):
    access = ServerAccess(base_url=url, auth="id-token", id_tokens=IdTokenSource(url, lambda _audience: "t"))
    outcome = outcome_of(url, "anonymous access", access=access)
    assert outcome.state == "failed"
    assert "anyone can call /v1/models" in outcome.detail


STACK = replace(TARGET, stack="l4-qat")
PATHS = "/v1/models 401, /metrics {0}, /invocations {0}, /tokenize {0}"


def with_key(url):
    return ServerAccess(base_url=url, auth="none", api_key="key")


def test_what_vllm_leaves_open_behind_a_key_fails_a_stack_and_warns_about_another_server(tmp_path):
    with serving(tmp_path, VLLM_API_KEY="key") as found:
        outcome = outcome_of(found.url, "anonymous access", STACK, with_key(found.url))
        assert (outcome.state, outcome.measured) == (
            "failed",
            f"{PATHS.format(200)}, web pages allowed, URLs fetched",
        )
        for said in (
            "anyone can call /metrics; anyone can call /invocations; anyone can call /tokenize",
            "web pages of any origin can call it (--allowed-origins)",
            "callers can fetch any URL from the server's network (vllm.allowedMediaDomains). It returned 500",
        ):
            assert said in outcome.detail
        other = outcome_of(found.url, "anonymous access", replace(STACK, stack=None), with_key(found.url))
        assert other.state == "warned"
        tunnel = ServerAccess(base_url=found.url, auth="tunnel", api_key="key")
        assert "anyone can call /invocations" in outcome_of(found.url, "anonymous access", STACK, tunnel).detail


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A server that web pages cannot call, and that reads no media."""
    words = ("--allowed-origins=[]", '--limit-mm-per-prompt={"image": 0}')
    with serving(tmp_path_factory.mktemp("closed"), *words) as found:
        yield found


async def anonymous_of(server, api_key=None):
    """Return the outcome of the check of anonymous access alone, which needs no model."""
    async with OpenAIClient(server.url) as client:
        access = ServerAccess(base_url="", auth="none", api_key=api_key)
        context = CheckContext(client=client, access=access, target=STACK, report_progress=lambda _text: None)
        return await checks_exposure.anonymous(context)


@pytest.mark.parametrize(
    ("status", "verdict"), [(503, "unknown"), (429, "unknown"), (404, "passed"), (302, "passed"), (400, "failed")]
)
def test_an_answer_that_says_nothing_about_access_is_neither_open_nor_closed(closed, status, verdict):
    closed.plant(*({"path": path, "status": status} for path in checks_exposure.GUARDED))
    outcome = asyncio.run(anonymous_of(closed, api_key="key"))
    assert outcome.state == verdict, outcome
    assert ("/metrics returned 503" in outcome.detail) is (status == 503)


@pytest.mark.parametrize(
    ("status", "message", "verdict"),
    [
        (400, "The URL must be from one of the allowed domains: ['none.invalid']", "passed"),
        (422, "Failed to fetch media from URL: Invalid URL", "unknown"),
        (400, "Unknown model", "unknown"),
        (500, "Internal Server Error", "failed"),
        (503, "overloaded", "unknown"),
    ],
)
def test_only_a_refusal_by_the_name_says_that_no_url_is_read(closed, status, message, verdict):
    closed.plant({"status": status, "message": message})
    assert asyncio.run(anonymous_of(closed)).state == verdict


def test_an_answer_that_every_model_knows_shows_the_weights(served, url):
    served.plant({"broken": "wrong_value"})
    outcome = outcome_of(url, "chat")
    assert (outcome.state, "damaged weights" in outcome.detail) == ("failed", True)


def test_a_call_must_be_as_whole_in_a_stream_as_in_one_piece():
    call = ToolCall("c", "get_weather", '{"location": "Tokyo"}')
    whole = ChatMessage(role="assistant", text="", reasoning="", tool_calls=[call], finish_reason="tool_calls")
    streamed = replace(whole, finish_reason="stop")
    found = [compared(whole, other, lambda _message: passed("a call")) for other in (whole, streamed)]
    assert [one.state for one in found] == ["passed", "warned"]
    assert "streamed: finish_reason stop" in found[1].measured


LOOPED = ("own ", "\n", "\u00a0", "-", '{"a": 1}, ', "The horizon is a line where the sky meets the sea. ")
PLAIN = (" ".join(f"{number}. Item {number}" for number in range(60)), "| --- | --- | --- | --- |\n" * 3, "-" * 80, "")


@pytest.mark.law
def test_a_repeated_part_fails_wherever_it_is_and_other_text_does_not(subtests):
    """A text of vllm#40080 repeats one word to the limit, in the answer, the reasoning or an argument."""
    for unit, start, place in itertools.product(LOOPED, PLAIN, ("text", "reasoning", "arguments")):
        for repeats, verdict in ((6, "passed"), (max(8, 120 // len(unit)), "failed")):
            text = f"{start} so {unit * repeats}"
            call = ToolCall("c", "f", json.dumps({"a": text if place == "arguments" else "b"}, ensure_ascii=False))
            texts = {key: text if key == place else "fine" for key in ("text", "reasoning")}
            message = ChatMessage(role="assistant", **texts, tool_calls=[call], finish_reason="stop")
            with subtests.test(f"{unit!r} {repeats} {place}"):
                assert compared(message, message, lambda _message: passed("")).state == verdict


@pytest.mark.parametrize("kind", ["no_json", "wrong_value"])
def test_a_schema_that_works_alone_and_breaks_under_requests_in_parallel_fails(served, url, kind):
    """As tpu-inference#1531: no JSON, or that of another request."""
    served.plant({"broken": kind, "nth": 4, "count": EACH})
    outcome = outcome_of(url, "structured output", EVERY_FEATURE)
    assert outcome.state == "failed"
    assert outcome.measured.startswith("4 in parallel: ")
    assert outcome.detail.startswith("alone, such a request passes")


def context_of(client, **changes):
    return CheckContext(
        client=client,
        access=ServerAccess(base_url="", auth="none"),
        target=replace(EVERY_FEATURE, **changes),
        report_progress=lambda _text: None,
    )


def outcome_with(answer, check, **changes):
    """Return the outcome of a check on a server with these answers, which no vLLM has."""

    async def run(url):
        async with OpenAIClient(url) as client:
            return await check(context_of(client, **changes))

    with answering_with(answer) as url:
        return asyncio.run(run(url))


def test_an_adapter_that_changes_only_probabilities_is_no_copy_of_the_base_model(subtests):
    for logprob, verdict in ((-0.5, "warned"), (-0.9, "passed")):

        def answer(request, logprob=logprob):
            if request.path == "/v1/models":
                return 200, {"data": [{"id": name} for name in FEATURES.adapters]}
            asked = json.loads(request.body)["model"]
            if asked not in ("base", *FEATURES.adapters):
                return 404, {}
            tokens = [{"token": "a", "logprob": -0.5 if asked == "base" else logprob}]
            choice = {"message": {"content": "a"}, "logprobs": {"content": tokens}}
            return 200, {"model": asked, "choices": [choice]}

        with subtests.test(verdict):
            assert outcome_with(answer, checks_server.adapters, model="base").state == verdict


EVERY_FEATURE = replace(
    TARGET, stack="s", thresholds=replace(TARGET.thresholds, startup_budget_s=0.5), features=FEATURES
)


@pytest.mark.parametrize("check", [*CHECKS, *AGENT_CHECKS], ids=lambda check: check.name)
def test_no_check_passes_on_a_server_that_fails_each_request(check, served):
    """The check of the options reads a page that is there, with other options than planned."""
    is_of_options = check.name == "options in effect"
    served.plant(*[] if is_of_options else [{"path": "*", "status": 500}])

    async def run():
        async with OpenAIClient(served.url) as client:
            context = context_of(client, cache_options={"block_size": "1"})
            context.access, context.max_model_len = ServerAccess(base_url=served.url, auth="none"), 2048
            return await _run_one(check, context)

    outcome = asyncio.run(run()).outcome
    assert outcome.state in {"failed", "unknown"}, (
        f"{check.name} is {outcome.state} on a planted fault: a skipped check needs its feature in EVERY_FEATURE, "
        "a passed one does not read the response"
    )


def test_an_api_without_a_path_is_not_in_an_old_release_and_missing_from_others(subtests):
    """vLLM has /v1/responses from 0.10.0 and /v1/messages from 0.11.1."""
    releases = ("0.9.2", "0.10.0", "0.11.0", "0.11.1", "0.32.0", "")
    old = {"/v1/responses": {"0.9.2"}, "/v1/messages": {"0.9.2", "0.10.0", "0.11.0"}}
    for path, release in itertools.product(old, releases):

        def answer(request, release=release):
            return (200, {"version": release}) if request.path == "/version" else (404, {"detail": "Not Found"})

        outcome = outcome_with(answer, partial(checks_tools.other_api, path=path))
        with subtests.test(f"{path} {release}"):
            assert outcome.state == ("skipped" if release in old[path] else "failed")
            assert f"vLLM has {path} from 0.1" in outcome.detail


def test_the_page_has_a_row_for_each_check():
    table = PAGE.read_text().partition("| check | passes if |\n")[2].partition("\n\n")[0]
    rows = [name for line in table.splitlines()[1:] for name in line.split("|")[1].strip().split(", ")]
    assert rows == [check.name for check in (*CHECKS, PLAN_CHECK, *AGENT_CHECKS)], (
        f"the table of {PAGE} has the checks in their order"
    )


def test_a_step_that_hangs_ends_at_its_limit_and_the_next_one_runs(url):
    async def hang(_context):
        await asyncio.sleep(600)

    async def fine(_context):
        return Outcome("passed")

    checks = (
        SmokeCheck(name="hangs", limit_s=lambda _t: 0.2, run=hang),
        SmokeCheck(name="next", limit_s=lambda _t: 60, run=fine),
    )
    report = run_smoke(ServerAccess(base_url=url, auth="none"), TARGET, lambda _text: None, checks=checks)
    assert [check.outcome.state for check in report.checks] == ["failed", "passed"]
    assert "the check reached its time limit" in report.checks[0].outcome.detail


@pytest.mark.parametrize(
    "check",
    [checks_basic.served_model, checks_basic.chat, checks_basic.usage, checks_basic.streaming, checks_tools.tool_call],
)
def test_an_answer_of_the_wrong_shape_is_the_servers_failure_and_no_crash(check):
    run = partial(_run_one, SmokeCheck(name="c", limit_s=lambda _t: 60, run=check))
    assert outcome_with(lambda _request: (200, [1, 2, 3]), run).outcome.state == "failed"


def row(name, verdict):
    return FinishedCheck(name=name, outcome=Outcome(verdict), elapsed_s=0.5)


def report_of(*rows, interrupted=False):
    return SmokeReport(
        stack="s", url="http://h", model="m", simulated=None, checks=rows, interrupted=interrupted, elapsed_s=1.0
    )


def test_exit_codes_tell_failed_from_interrupted_from_done():
    assert report_of(row("a", "passed"), row("b", "warned")).exit_code == 0
    assert report_of(row("a", "failed")).exit_code == 1
    assert report_of(row("a", "passed"), row("b", "not run")).exit_code == 1
    assert report_of(row("a", "passed"), row("b", "not run"), interrupted=True).exit_code == 130
    assert summary(report_of(row("a", "passed"), interrupted=True)).startswith("interrupted: 1 passed")
