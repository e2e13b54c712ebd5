import asyncio
import itertools
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

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
from loadtest.client.metrics import CACHE_CONFIG
from loadtest.client.openai import OpenAIClient
from localcloud.tests.running.running_server import server as vllm_server
from tests.scripts.sample_outputs import sample_outputs
from tests.scripts.smoke.test_features import FEATURES

PAGE = Path(__file__).parents[3] / "docs" / "smoke.md"


def planned_memory(blocks):
    plan = from_json(StackOutputs, sample_outputs()).plan
    return replace(plan.memory, kv_blocks=blocks)


TARGET = SmokeTarget(
    model="timed",
    thresholds=SmokeThresholds(
        # Limits that a busy machine meets too: a stall of seconds is not a server failure.
        startup_budget_s=60,
        max_ttft_s=30.0,
        min_decode_tok_per_s=1.0,
        min_burst_tok_per_s=1.0,
        max_model_len=2048,
    ),
    memory=planned_memory(1000),
    cache_options={"block_size": "16", "cache_dtype": "fp8"},
)


def smoke(url, target=TARGET, access=None, only=None):
    said = []
    checks = (
        CHECKS if only is None else tuple(check for check in CHECKS if check.name in {"ready", "served model", only})
    )
    report = run_smoke(access or ServerAccess(base_url=url, auth="none"), target, said.append, checks=checks)
    return report, {check.name: check.outcome for check in report.checks}, said


def test_what_is_too_slow_fails_and_says_by_how_much(url):
    slow = replace(
        TARGET,
        thresholds=replace(TARGET.thresholds, max_ttft_s=0.001, min_decode_tok_per_s=1e9, min_burst_tok_per_s=1e9),
    )
    report, checks, _ = smoke(url, slow)
    assert report.exit_code == 1
    assert {check.name for check in report.failed} == {"single stream", "burst"}
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
    assert checks["served model"].measured == "timed"
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
    _, checks, _ = smoke(url, replace(TARGET, cache_options={"block_size": "32"}), only="options in effect")
    assert checks["options in effect"].state == "failed"
    assert "block_size is 16, planned 32" in checks["options in effect"].detail
    _, checks, _ = smoke(url, replace(TARGET, memory=planned_memory(1300), cache_options={}), only="options in effect")
    assert checks["options in effect"].state == "warned"
    assert checks["options in effect"].detail.startswith("23% fewer than planned")
    _, checks, _ = smoke(url, replace(TARGET, replicas=4, cache_options={}), only="options in effect")
    assert checks["options in effect"].state == "failed"
    assert "4 engines (`vllm.dataParallelSize`), but 1 export metrics" in checks["options in effect"].detail


def test_a_shorter_max_model_len_than_promised_fails(url):
    _, checks, _ = smoke(
        url, replace(TARGET, thresholds=replace(TARGET.thresholds, max_model_len=4096)), only="max-model-len"
    )
    assert checks["max-model-len"].state == "failed"
    assert "-2048 tokens" in checks["max-model-len"].detail


def test_a_server_that_should_be_private_and_is_not_fails(url):
    access = ServerAccess(base_url=url, auth="id-token", id_tokens=IdTokenSource(url, lambda _audience: "t"))
    _, checks, _ = smoke(url, access=access, only="anonymous access")
    assert checks["anonymous access"].state == "failed"
    assert "anyone can call /v1/models" in checks["anonymous access"].detail


STACK = replace(TARGET, stack="l4-qat", model="simulated/tiny")
PATHS = "/v1/models 401, /metrics {0}, /invocations {0}, /tokenize {0}"


def with_key(url):
    return ServerAccess(base_url=url, auth="none", api_key="key")


def test_what_vllm_leaves_open_behind_a_key_fails_a_stack_and_warns_about_another_server():
    with vllm_server(["vllm", "serve", "simulated/tiny"], VLLM_API_KEY="key") as url:
        outcome = smoke(url, STACK, with_key(url), only="anonymous access")[1]["anonymous access"]
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
        other = smoke(url, replace(STACK, stack=None), with_key(url), only="anonymous access")[1]["anonymous access"]
        assert other.state == "warned"
        tunnel = smoke(url, STACK, ServerAccess(base_url=url, auth="tunnel", api_key="key"), only="anonymous access")
        assert "anyone can call /invocations" in tunnel[1]["anonymous access"].detail


def test_an_answer_that_says_nothing_about_access_is_neither_open_nor_closed(subtests):
    for status, verdict in ((503, "unknown"), (429, "unknown"), (404, "passed"), (302, "passed"), (400, "failed")):
        with subtests.test(str(status)):
            outcome = anonymous_of_a_server_that_answers(status)
            assert outcome.state == verdict
            assert ("/metrics returned 503" in outcome.detail) is (status == 503)


def anonymous_of_a_server_that_answers(status):
    headers = {"Location": "https://login.example"} if status == 302 else {}
    no_media = {"error": {"message": "At most 0 image(s) may be provided in one prompt."}}
    paths = [("GET", path) for path in ("/v1/models", "/metrics")]
    paths += [("POST", path) for path in ("/invocations", "/tokenize")]
    routes = [(verb, path, fixed(status, headers=headers)) for verb, path in paths]
    return anonymous_of([*routes, ("POST", "/v1/chat/completions", fixed(400, no_media))], api_key="key")


def fixed(status, document=None, headers=None):
    """Return a handler with one answer."""

    async def answer(_request):
        return web.json_response(document, status=status, headers=headers)

    return answer


def anonymous_of(routes, api_key=None):
    """Return the outcome of the check of anonymous access on a server that is ready."""

    async def use(context):
        context.access, context.target = replace(context.access, api_key=api_key), STACK
        return await checks_exposure.anonymous(context)

    return asyncio.run(answering([("GET", "/health", fixed(200)), *routes])(use))


def test_only_a_refusal_by_the_name_says_that_no_url_is_read(subtests):
    table = (
        (400, "The URL must be from one of the allowed domains: ['none.invalid']", "passed"),
        (422, "Failed to fetch media from URL: Invalid URL", "unknown"),
        (400, "Unknown model", "unknown"),
        (500, "Internal Server Error", "failed"),
        (503, "overloaded", "unknown"),
        (200, "", "failed"),
    )
    for status, message, verdict in table:
        with subtests.test(f"{status} {message}"):
            media = fixed(status, {"error": {"message": message}})
            assert anonymous_of([("POST", "/v1/chat/completions", media)]).state == verdict


def answering(routes):
    """Runs `use(client)` against a server of these handlers."""

    async def run(use):
        app = web.Application()
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with OpenAIClient(f"http://127.0.0.1:{port}") as client:
                return await use(
                    CheckContext(
                        client=client,
                        access=ServerAccess(base_url="", auth="none"),
                        target=replace(TARGET, features=FEATURES),
                        report_progress=lambda _text: None,
                    )
                )
        finally:
            await runner.cleanup()

    return run


def says(message, finish_reason="stop", streamed=None):
    """A server with one answer. `streamed`: its delta and finish reason in a stream if they differ."""
    message = {"role": "assistant", **message}
    delta, finish_in_stream = streamed or (message, finish_reason)

    async def handler(request):
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if (await request.json()).get("stream"):
            event = json.dumps(
                {
                    "choices": [{"delta": {"role": "assistant", **delta}, "finish_reason": finish_in_stream}],
                    "usage": usage,
                }
            )
            return web.Response(text=f"data: {event}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
        return web.json_response({"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage})

    return [("POST", "/v1/chat/completions", handler)]


@pytest.mark.parametrize(
    ("message", "verdict", "words"),
    [({"content": "Lyon"}, "failed", "damaged weights"), ({"content": "It is Paris."}, "passed", "")],
)
def test_an_answer_that_every_model_knows_shows_the_weights(message, verdict, words):
    outcome = asyncio.run(answering(says(message))(checks_basic.chat))
    assert outcome.state == verdict, outcome
    assert words in outcome.detail


def calls(**function):
    return {"content": None, "tool_calls": [{"index": 0, "id": "c", "function": function}]}


TOKYO = calls(name="get_weather", arguments='{"location": "Tokyo"}')


@pytest.mark.parametrize(
    ("streamed", "verdict", "measured"),
    [
        (({"content": None, **TOKYO}, "tool_calls"), "passed", 'get_weather({"location": "Tokyo"})'),
        ((TOKYO, "stop"), "warned", "call 1: streamed: finish_reason stop"),
    ],
)
def test_a_call_must_be_as_whole_in_a_stream_as_in_one_piece(streamed, verdict, measured):
    outcome = asyncio.run(answering(says(TOKYO, "tool_calls", streamed))(checks_tools.tool_call))
    assert outcome.state == verdict, outcome
    assert measured in outcome.measured


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


RIGHT_CITY = '{"city":"Paris","country":"France","population":2102650}'


@pytest.mark.parametrize("text", ["Paris", RIGHT_CITY])
def test_a_schema_that_works_alone_and_breaks_under_requests_in_parallel_fails(text):
    """As tpu-inference#1531: no JSON, or that of another request."""
    running = 0

    async def handler(request):
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(0.05)
            return await says({"content": text if running > 2 else RIGHT_CITY})[0][2](request)
        finally:
            running -= 1

    routes = [("GET", "/version", fixed(200, {})), ("POST", "/v1/chat/completions", handler)]
    outcome = asyncio.run(answering(routes)(checks_features.structured_output))
    assert outcome.state == "failed"
    assert outcome.measured.startswith("4 in parallel: ")
    assert outcome.detail.startswith("alone, such a request passes")


def test_an_adapter_that_changes_only_probabilities_is_no_copy_of_the_base_model(subtests):
    for logprob, verdict in ((-0.5, "warned"), (-0.9, "passed")):

        async def handler(request, logprob=logprob):
            asked = (await request.json())["model"]
            if asked not in ("base", *FEATURES.adapters):
                return web.json_response({}, status=404)
            tokens = [{"token": "a", "logprob": -0.5 if asked == "base" else logprob}]
            choice = {"message": {"content": "a"}, "logprobs": {"content": tokens}}
            return web.json_response({"model": asked, "choices": [choice]})

        async def use(context):
            context.target = replace(EVERY_FEATURE, model="base")
            return await checks_server.adapters(context)

        with subtests.test(verdict):
            models = {"data": [{"id": name} for name in FEATURES.adapters]}
            routes = [("GET", "/v1/models", fixed(200, models)), ("POST", "/v1/chat/completions", handler)]
            assert asyncio.run(answering(routes)(use)).state == verdict


EVERY_FEATURE = replace(
    TARGET, stack="s", thresholds=replace(TARGET.thresholds, startup_budget_s=0.5), features=FEATURES
)
WRONG_OPTIONS = f'{CACHE_CONFIG[0]}{{block_size="1",cache_dtype="auto",num_gpu_blocks="1"}} 1\n'


@pytest.mark.parametrize("check", [*CHECKS, *AGENT_CHECKS], ids=lambda check: check.name)
def test_no_check_passes_on_a_server_that_fails_each_request(check):
    async def fault(request):
        if request.path == "/metrics":
            return web.Response(text=WRONG_OPTIONS)
        return web.json_response({"error": {"message": "planted"}}, status=500)

    async def use(context):
        context.target, context.max_model_len = EVERY_FEATURE, 2048
        return await _run_one(check, context)

    outcome = asyncio.run(answering([("*", "/{path:.*}", fault)])(use)).outcome
    assert outcome.state in {"failed", "unknown"}, (
        f"{check.name} is {outcome.state} on a planted fault: a skipped check needs its feature in EVERY_FEATURE, "
        "a passed one does not read the response"
    )


def test_an_api_without_a_path_is_not_in_an_old_release_and_missing_from_others(subtests):
    """vLLM has /v1/responses from 0.10.0 and /v1/messages from 0.11.1."""
    releases = ("0.9.2", "0.10.0", "0.11.0", "0.11.1", "0.32.0", "")
    old = {"/v1/responses": {"0.9.2"}, "/v1/messages": {"0.9.2", "0.10.0", "0.11.0"}}
    for path, release in itertools.product(old, releases):
        routes = [
            ("GET", "/version", fixed(200, {"version": release})),
            ("POST", path, fixed(404, {"detail": "Not Found"})),
        ]
        outcome = asyncio.run(answering(routes)(partial(checks_tools.other_api, path=path)))
        with subtests.test(f"{path} {release}"):
            assert outcome.state == ("skipped" if release in old[path] else "failed")
            assert f"vLLM has {path} from 0.1" in outcome.detail


def test_the_page_has_a_row_for_each_check():
    table = PAGE.read_text().partition("| check | passes if |\n")[2].partition("\n\n")[0]
    rows = [name for line in table.splitlines()[1:] for name in line.split("|")[1].strip().split(", ")]
    assert rows == [check.name for check in (*CHECKS, PLAN_CHECK, *AGENT_CHECKS)], (
        f"the table of {PAGE} has the checks in their order"
    )


def test_a_prompt_over_the_limit_that_is_not_refused_fails():
    async def use(context):
        context.max_model_len = 2048
        return await checks_features.max_model_len(context)

    outcome = asyncio.run(answering(says({"content": "fine"}))(use))
    assert outcome.state == "failed"
    assert "was not rejected" in outcome.detail


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


def test_an_answer_of_the_wrong_shape_is_the_servers_failure_and_no_crash():
    odd = fixed(200, [1, 2, 3])

    async def use(context):
        found = (
            checks_basic.served_model,
            checks_basic.chat,
            checks_basic.usage,
            checks_basic.streaming,
            checks_tools.tool_call,
        )
        return [
            (await _run_one(SmokeCheck(name="c", limit_s=lambda _t: 60, run=check), context)).outcome.state
            for check in found
        ]

    assert (
        asyncio.run(answering([("GET", "/v1/models", odd), ("POST", "/v1/chat/completions", odd)])(use))
        == ["failed"] * 5
    )


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
