"""The endpoints of a running server, over HTTP."""

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from localcloud.tests.running.running_server import Answer, ask, server

MODEL = "simulated/tiny"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
    },
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    names = ["--served-model-name", "gemma", "alias"]
    words = ["vllm", "serve", MODEL, "--max-model-len=512", *names, "--max-num-seqs=64", "--reasoning-parser=gemma4"]
    words += ["--enable-auto-tool-choice", "--tool-call-parser=gemma4"]
    with server(words, VLLM_SIM_TTFT_S="0.01", VLLM_SIM_TPOT_S="0.001") as address:
        yield address


def chat(url: str, content: str = "Tell me something.", **more: Any) -> Answer:
    return ask(
        f"{url}/v1/chat/completions", {"model": "gemma", "messages": [{"role": "user", "content": content}], **more}
    )


def metric(url: str, name: str) -> float:
    text = ask(f"{url}/metrics").text
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_the_models_are_listed_under_the_served_names(url: str):
    assert ask(f"{url}/nowhere").headers["x-simulated"] == chat(url, stream=True).headers["x-simulated"] == "vllm"
    listed = ask(f"{url}/v1/models").json["data"]
    assert [(item["id"], item["max_model_len"], item["root"]) for item in listed] == [
        ("gemma", 512, MODEL),
        ("alias", 512, MODEL),
    ]
    assert {item["owned_by"] for item in listed} == {"vllm-simulated"}


THINKS: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
CHATS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "free text": ("Tell me a story.", {}, {}),
    "a limit": ("Tell me a story.", {"max_tokens": 7, "ignore_eos": True}, {"finish": "length"}),
    "a row": ("What is the capital of France?", {}, {"content": "Paris", "reasoning": ""}),
    "reasoning": ("What is the capital of France?", THINKS, {"content": "Paris"}),
    "a call": (
        "How is the weather in Tokyo?",
        {"tools": [TOOL]},
        {"finish": "tool_calls", "call": ["get_weather", '{"location": "Tokyo"}'], "content": ""},
    ),
    "no call": ("How is the weather in Tokyo?", {"tools": [TOOL], "tool_choice": "none"}, {"call": []}),
}
"""Questions, further fields, and what their answers have."""


def parts_of(message: dict[str, Any], finish: str) -> dict[str, Any]:
    call = (message.get("tool_calls") or [{}])[0].get("function")
    texts = {name: message.get(name) or "" for name in ("content", "reasoning")}
    return {**texts, "call": [call["name"], call["arguments"]] if call else [], "finish": finish}


@pytest.mark.parametrize("case", CHATS)
def test_a_stream_has_the_parts_and_the_usage_of_the_whole_answer(url: str, case: str):
    question, more, has = CHATS[case]
    body = chat(url, question, **more).json
    whole = parts_of(body["choices"][0]["message"], body["choices"][0]["finish_reason"])
    assert has.items() <= whole.items()
    assert bool(whole["reasoning"]) is (more == THINKS)
    options = {"include_usage": True, "continuous_usage_stats": True}
    first, *middle, last, usage = chat(url, question, **more, stream=True, stream_options=options).events()
    assert (first["object"], first["choices"][0]["delta"]) == (
        "chat.completion.chunk",
        {"role": "assistant", "content": ""},
    )
    assert {event["choices"][0]["finish_reason"] for event in (first, *middle)} == {None}
    deltas = [event["choices"][0]["delta"] for event in middle]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    function = {"arguments": "".join(call["function"]["arguments"] for call in calls)}
    message: dict[str, Any] = {
        name: "".join(delta.get(name, "") for delta in deltas) for name in ("content", "reasoning")
    }
    if calls:
        message["tool_calls"] = [{"function": {**function, "name": calls[0]["function"]["name"]}}]
    assert parts_of(message, last["choices"][0]["finish_reason"]) == whole
    assert usage["choices"] == []
    assert usage["usage"] == {name: value for name, value in body["usage"].items() if value is not None}
    counts = [event["usage"]["completion_tokens"] for event in (first, *middle, last)]
    assert counts == sorted(counts)
    assert counts[-1] == usage["usage"]["completion_tokens"]
    assert len({event["id"] for event in (first, *middle, last, usage)}) == 1
    assert all("usage" not in event for event in chat(url, question, **more, stream=True).events())


def test_max_tokens_and_ignore_eos_bound_the_length(url: str):
    def tokens(**more: Any) -> tuple[int, str]:
        body = chat(url, "Go on.", temperature=0, **more).json
        return body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]

    assert tokens(max_tokens=9, ignore_eos=True) == (9, "length")
    assert tokens(max_completion_tokens=9, ignore_eos=True) == (9, "length")
    natural, reason = tokens()
    assert reason == "stop"
    assert tokens(max_tokens=natural - 5) == (natural - 5, "length")


def test_text_completions_take_text_or_ids_and_default_to_16_tokens(url: str):
    body = ask(f"{url}/v1/completions", {"prompt": "Once upon a time", "ignore_eos": True}).json
    assert body["object"] == "text_completion"
    assert body["usage"]["completion_tokens"] == 16
    ids = ask(f"{url}/tokenize", {"prompt": "Once upon a time"}).json
    again = ask(f"{url}/v1/completions", {"prompt": ids["tokens"], "ignore_eos": True}).json
    assert again["usage"]["prompt_tokens"] == ids["count"] == body["usage"]["prompt_tokens"]
    events = ask(f"{url}/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 3, "ignore_eos": True}).events()
    text = "".join(event["choices"][0]["text"] for event in events)
    assert ask(f"{url}/tokenize", {"prompt": text, "add_special_tokens": False}).json["count"] == 3


def test_a_prompt_over_the_limit_is_refused_and_a_response_gets_what_is_left(url: str):
    ids = [600] * 513
    answer = ask(f"{url}/v1/completions", {"prompt": ids, "max_tokens": 1})
    assert answer.status == 400
    error = answer.json["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", "input_tokens", 400)
    assert "maximum context length is 512 tokens" in error["message"]
    assert "at least 513 input tokens" in error["message"]
    assert ask(f"{url}/v1/completions", {"prompt": ids[:-1]}).json["error"]["param"] == "max_tokens"
    left = ask(f"{url}/v1/completions", {"prompt": ids[:500], "max_tokens": 100, "ignore_eos": True}).json
    assert left["usage"]["completion_tokens"] == 12
    assert "cannot be greater than max_model_len=512" in chat(url, max_tokens=513).json["error"]["message"]


def test_what_pydantic_refuses_is_refused_in_its_words(url: str):
    other = chat(url, model="other")
    assert (other.status, other.json["error"]["type"]) == (404, "NotFoundError")
    for body, says in (
        ({"messages": [{"content": "x"}]}, "'msg': 'Field required'"),
        ({"messages": [{"role": "user", "content": "x"}], "stop": ["a"] * 5}, "'max_length': 4"),
        ({}, "'loc': 'body.messages', 'msg': 'Field required'"),
        ([1], "valid dictionary"),
    ):
        refused = ask(f"{url}/v1/chat/completions", body)
        assert (refused.status, says in refused.text) == (400, True)


def test_a_value_of_another_type_is_converted_or_refused_as_pydantic_does(url: str):
    assert chat(url, max_tokens="3", temperature=True).json["usage"]["completion_tokens"] == 3
    error = chat(url, max_tokens="many").json["error"]
    assert (error["type"], error["param"]) == ("Bad Request", "body.max_tokens")
    assert "'type': 'int_parsing'" in error["message"]


def test_a_path_answers_its_methods_only_and_without_a_slash_at_its_end(url: str):
    refused = ask(f"{url}/v1/models", {})
    assert (refused.status, refused.headers["allow"]) == (405, "GET")
    assert ask(f"{url}/health/").status == 200, "the client follows the redirect"
    assert (
        ask(f"{url}/detokenize", {"tokens": ask(f"{url}/tokenize", {"prompt": "Hello."}).json["tokens"]}).status == 200
    )


def test_openais_client_reads_a_call_and_its_answer_of_responses_also_as_a_stream(url: str):
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tool: Any = {
        "type": "function",
        "name": "get_weather",
        "parameters": TOOL["function"]["parameters"],
        "strict": False,
    }
    turns: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "How is the weather in Tokyo?"}]}]
    thinks = {"chat_template_kwargs": {"enable_thinking": True}}
    whole = client.responses.create(model="gemma", input=turns, tools=[tool], extra_body=thinks)
    with client.responses.stream(model="gemma", input=turns, tools=[tool], extra_body=thinks) as stream:
        streamed = stream.get_final_response()
    for response in (whole, streamed):
        reasoning, call = response.output
        assert (reasoning.type, call.type) == ("reasoning", "function_call")
        assert json.loads(call.arguments) == {"location": "Tokyo"}
    turns += [call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": "23.7"}]
    with client.responses.stream(model="gemma", input=turns, tools=[tool]) as stream:
        assert stream.get_final_response().output_text == "The tool returned: 23.7."


def test_messages_has_the_same_content_in_one_piece_and_as_a_stream(url: str):
    """vLLM's stream: the start of the message and of each block, its deltas, its end, and the end of the message (entrypoints/anthropic/serving.py)."""
    turns: list[Any] = [{"role": "user", "content": "How is the weather in Tokyo?"}]
    body = {
        "model": "gemma",
        "max_tokens": 99,
        "messages": turns,
        "tools": [{"name": "get_weather", "input_schema": TOOL["function"]["parameters"]}],
    }
    whole = ask(f"{url}/v1/messages", {**body, "system": "Be kind.", "chat_template_kwargs": {"enable_thinking": True}})
    thinking, call = whole.json["content"]
    assert (thinking["type"], call["name"], call["input"]) == ("thinking", "get_weather", {"location": "Tokyo"})
    assert whole.json["stop_reason"] == "tool_use"
    text = ask(f"{url}/v1/messages", {**body, "stream": True}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    kinds = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"]
    assert [*dict.fromkeys(event["type"] for event in events)] == [*kinds, "message_stop"]
    deltas = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(deltas)) == call["input"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "23.7"}
    turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert ask(f"{url}/v1/messages", body).json["content"] == [{"type": "text", "text": "The tool returned: 23.7."}]


def test_metrics_parse_and_count_what_was_served(url: str):
    prompt, generated, stopped = (
        metric(url, f"vllm:{name}")
        for name in ("prompt_tokens_total", "generation_tokens_total", "request_success_total")
    )
    body = chat(url, max_tokens=20, ignore_eos=True).json
    assert metric(url, "vllm:prompt_tokens_total") == prompt + body["usage"]["prompt_tokens"]
    assert metric(url, "vllm:generation_tokens_total") == generated + 20
    assert metric(url, "vllm:request_success_total") == stopped  # the first line is finished_reason="stop"
    text = ask(f"{url}/metrics").text
    names = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    assert {
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds",
    } <= names
    for line in text.splitlines():
        assert line.startswith("# ") or re.fullmatch(
            r"[a-z0-9_:]+(\{[a-z_]+=\"[^\"]*\"(,[a-z_]+=\"[^\"]*\")*\})? [-\d.e+]+", line
        ), line
    config = re.search(r"vllm:cache_config_info\{([^}]*)\}", text)
    assert config is not None
    assert 'block_size="16"' in config[1]
    assert re.search(r'num_gpu_blocks="\d+"', config[1])


def requests_counted(url: str, handler: str, status: str) -> float:
    text = ask(f"{url}/metrics").text
    found = re.search(
        rf'^http_requests_total{{handler="{handler}",method="\w+",status="{status}"}} (\S+)$', text, re.MULTILINE
    )
    return float(found[1]) if found else 0.0


def test_a_repeated_prompt_hits_the_prefix_cache(url: str):
    prompt = [700 + number for number in range(100)]
    ask(f"{url}/v1/completions", {"prompt": prompt, "max_tokens": 1})
    before = metric(url, "vllm:prefix_cache_hits_total")
    ask(f"{url}/v1/completions", {"prompt": prompt, "max_tokens": 1})
    assert metric(url, "vllm:prefix_cache_hits_total") == before + 96  # six whole blocks of 16


def open_stream(url: str, body: object) -> socket.socket:
    """Send a request, and leave its answer unread."""
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    data = json.dumps(body).encode()
    stream = socket.create_connection((host, int(port)), 60)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    stream.sendall(head.encode() + data)
    return stream


def until(came_about: Callable[[], bool]) -> None:
    """Wait until something has come about."""
    end_s = time.monotonic() + 60
    while not came_about():
        assert time.monotonic() < end_s
        time.sleep(0.02)  # the server is another process


def test_requests_beyond_the_limits_wait_their_turn():
    words = ["vllm", "serve", MODEL, "--max-num-seqs=2", "--max-model-len=512"]
    long = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
    short = {"prompt": "x", "max_tokens": 5, "ignore_eos": True}
    with server(words, VLLM_SIM_TTFT_S="0.01", VLLM_SIM_TPOT_S="1") as url, ThreadPoolExecutor(3) as pool:
        running = [open_stream(f"{url}/v1/completions", long) for _ in range(2)]
        until(lambda: metric(url, "vllm:num_requests_running") == 2)
        asked = [pool.submit(ask, f"{url}/v1/completions", short, timeout_s=60) for _ in range(3)]
        until(lambda: metric(url, "vllm:num_requests_waiting") == 3)
        assert metric(url, "vllm:num_requests_running") == 2
        assert metric(url, "vllm:kv_cache_usage_perc") > 0
        assert not any(answer.done() for answer in asked)
        for stream in running:
            stream.close()  # the places of callers that leave are free
        assert [answer.result().status for answer in asked] == [200] * 3
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            until(lambda name=name: metric(url, f"vllm:{name}") == 0)


def test_a_low_limit_of_open_files_does_not_limit_the_streams():
    with server(["vllm", "serve", MODEL], open_files=64) as url, contextlib.ExitStack() as stack:
        port = int(url.rpartition(":")[2])
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert ask(f"{url}/health").status == 200


def test_the_api_key_guards_v1_and_nothing_else():
    with server(["vllm", "serve", MODEL, "--api-key", "one", "two"]) as url:
        assert ask(f"{url}/v1/models").status == 401
        assert ask(f"{url}/v1/models", headers={"Authorization": "Bearer three"}).status == 401
        assert ask(f"{url}/v1/models", headers={"Authorization": "Bearer two"}).status == 200
        assert ask(f"{url}/health").status == ask(f"{url}/metrics").status == 200
        # The key is checked outside vLLM's counter of requests.
        assert requests_counted(url, "/v1/models", "2xx") == 1
        assert requests_counted(url, "/v1/models", "4xx") == 0
        assert ask(f"{url}/invocations", {"prompt": "x", "max_tokens": 1}).status == 200
        body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
        assert ask(f"{url}/v1/chat/completions", body, headers={"Authorization": "Bearer one"}).status == 400
