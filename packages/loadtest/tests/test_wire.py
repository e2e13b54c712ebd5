import asyncio
import json
from itertools import pairwise
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.client.events import EventSplitter, ToolCall, Usage, delta_of, joined, parse_event
from loadtest.client.wire import (
    Exchange,
    Origin,
    WireConnection,
    _plain_token,
    request_bytes,
    request_head,
)
from loadtest.tests.timed_server import raw_event as chunk


def event(obj, **more) -> bytes:
    return b"data: " + json.dumps(obj, separators=(",", ":"), **more).encode() + b"\n\n"


def token(text: str) -> dict:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]}


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nX-Simulated: t\r\n\r\n"
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}}
STREAM = (
    HEAD
    + chunk(event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}))
    + chunk(event(token(" a")))
    + chunk(event(token(' "content":"" ')) + event(token(" b")))
    + chunk(event({"choices": [{"delta": {}, "finish_reason": "length"}]}))
    + chunk(event({"choices": [], "usage": USAGE}))
    + chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)


def receive(pieces, *, end=None, keep_text=False) -> tuple[Exchange, WireConnection, bool]:
    """What a connection makes of bytes that arrive in these pieces, a second apart."""

    async def run():
        connection, transport = WireConnection(), Mock(asyncio.Transport)
        transport.is_closing = lambda: transport.abort.called
        connection.connection_made(transport)
        exchange, done = connection.exchange(b"POST", keep_text=keep_text)
        for second, piece in enumerate(pieces):
            connection.receive(piece, float(second))
        if end is not None:
            connection.connection_lost(None if end == "eof" else ConnectionResetError("reset by peer"))
        return exchange, connection, done.done()

    return asyncio.run(run())


def test_a_stream_is_timed_counted_and_complete():
    exchange, connection, done = receive([STREAM])
    assert done
    assert exchange.error is None
    assert len(exchange.times_s) == 4  # three tokens, and the event that ends the choice
    assert exchange.usage == Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=4)
    assert exchange.finished
    assert exchange.simulated
    assert connection.usable
    assert connection.reused


def usage_event(text: str) -> dict:
    return token(text) | {"usage": USAGE}


FRAMES = {
    "alone": chunk,
    "extended": lambda data: b"%x;x=1\r\n%b\r\n" % (len(data), data),
    "padded": lambda data: b"%08X\r\n%b\r\n" % (len(data), data),
    "halved": lambda data: chunk(data[:9]) + chunk(data[9:]),
    "crlf": lambda data: chunk(data.replace(b"\n", b"\r\n")),
    "blank line": lambda data: chunk(data + b"\r\n"),
    "comment": lambda data: chunk(b": ping\n\n" + data),
}
TEXTS = st.one_of(
    st.sampled_from(["", "a", " the", '"', "\\", 'x\\"', "\n\n\r\n", "}]}", '"content":"', "é"]), st.text(max_size=4)
)
EVENTS = st.tuples(
    st.sampled_from([token, token, token, usage_event]), TEXTS, st.booleans(), st.sampled_from([*FRAMES])
)


@settings(deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=12), st.lists(st.floats(0, 1), max_size=12))
def test_bytes_may_be_cut_and_framed_anywhere(events, cuts):
    """Events read by the form of an earlier one are those that JSON has, wherever reads, chunks and escapes end."""
    bodies = [(frame, event(make(text), ensure_ascii=ascii_only)) for make, text, ascii_only, frame in events]
    stream = HEAD + b"".join(FRAMES[frame](body) for frame, body in bodies)
    stream += chunk(event({"choices": [], "usage": USAGE})) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    borders = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
    exchange, _, done = receive([stream[a:b] for a, b in pairwise(borders)], keep_text=True)
    assert done
    assert exchange.error is None
    assert exchange.usage == Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=4)
    assert exchange.text == "".join(text for _, text, _, _ in events)
    ends, place = [], len(HEAD)
    for frame, body in bodies:  # an event arrives with its blank line
        framed = FRAMES[frame](body)
        ends.append(place + len(framed) - (4 if frame == "blank line" else 2))
        place += len(framed)
    seconds = [sum(border < end for border in borders[1:]) for end in ends]
    assert list(exchange.times_s) == seconds
    texts = [bool(text) for _, text, _, _ in events]
    assert exchange.silent == (texts.index(True) if any(texts) else len(texts))


def test_bytes_with_the_usual_form_that_are_not_such_an_event_are_left_to_the_parser(subtests):
    usual = event(token("a"))
    rows = {
        "a line end in the text": (chunk(usual.replace(b'"a"', b'"a\nb"')), "malformed", 1),
        "the end of a comment": (chunk(b": ") + chunk(usual), None, 1),
        "an error by the event's name": (chunk(b"event: error\n") + chunk(usual), "error_event", 1),
        "a wrong size": (b"%x\r\n%b\r\n" % (len(usual) + 1, usual), "malformed", 2),
    }
    for name, (sent, error, events) in rows.items():
        with subtests.test(name):
            exchange, _, _ = receive([HEAD + chunk(usual), sent, b"0\r\n\r\n"])
            assert (exchange.error, len(exchange.times_s)) == (error, events)


@settings(deadline=None)
@given(
    st.sampled_from(
        ["", " ", "x", '"', '"content":"', '"finish_reason":null', '\\"error":', "\n\n", "data: ", "}{", "é"]
    ),
    st.sampled_from([None, "stop"]),
    st.booleans(),
    st.booleans(),
)
def test_events_told_without_decoding_are_those_that_decoding_calls_plain_tokens(text, finish, with_usage, chat):
    choice = {"delta": {"content": text}} if chat else {"text": text}
    obj = {"choices": [{**choice, "finish_reason": finish}], "usage": USAGE if with_usage else None}
    payload = json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode()
    delta = parse_event(payload)
    if _plain_token(payload):
        assert delta.generated
        assert delta.finish_reason is None
        assert delta.usage is None
        assert delta.error is None


def test_a_message_is_the_same_in_one_piece_and_joined_from_its_deltas():
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": f"f{n}", "arguments": '{"a": 1}'}} for n in (0, 1)
    ]
    message = {"role": "assistant", "content": "So", "reasoning": "Two steps", "tool_calls": calls}
    begun = [{**call, "index": n, "function": {**call["function"], "arguments": ""}} for n, call in enumerate(calls)]
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning": "Two ", "content": None},
        {"reasoning_content": "steps"},
        {"content": "So"},
        {"content": None, "tool_calls": [begun[0]]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [begun[1], {"index": 0, "function": {"arguments": ": 1}"}}]},
        {"tool_calls": [{"index": 1, "id": None, "function": {"name": None, "arguments": '{"a": 1}'}}]},
    ]
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events += [{"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}, {"choices": [], "usage": USAGE}]
    whole = joined([delta_of({"choices": [{"message": message, "finish_reason": "tool_calls"}]})])
    assert joined([parse_event(json.dumps(event)) for event in events]) == whole
    assert list(whole.tool_calls) == [ToolCall("c0", "f0", '{"a": 1}'), ToolCall("c1", "f1", '{"a": 1}')]
    assert (whole.text, whole.reasoning, whole.finish_reason) == ("So", "Two steps", "tool_calls")


@pytest.mark.parametrize(
    ("pieces", "end", "kind"),
    [
        ([], "reset", "reset"),
        ([HEAD + chunk(b"data: {") + b"0\r\n\r\n"], None, "closed"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], None, "malformed"),
        ([HEAD + b"zz\r\nhello\r\n"], None, "malformed"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"], None, "malformed"),
        ([b"x" * 70_000], None, "malformed"),
    ],
)
def test_bytes_that_are_no_answer_are_a_failure_with_a_name_and_end_the_exchange(pieces, end, kind):
    """test_planted_times.py has the failures of servers, through the same connection."""
    exchange, _, done = receive(pieces, end=end)
    assert done
    assert exchange.error == kind


def test_a_body_without_framing_ends_with_the_connection():
    body = event(token(" a")) + event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"
    exchange, _, done = receive([b"HTTP/1.1 200 OK\r\n\r\n" + body], end="eof")
    assert done
    assert exchange.error is None
    assert exchange.usage is not None


def test_an_interim_answer_is_not_the_answer():
    exchange, _, done = receive([b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM])
    assert done
    assert exchange.status == 200


def test_the_words_of_an_error_body_are_kept():
    raw = json.dumps({"error": {"message": "maximum context length is 4096"}}).encode()
    exchange, _, _ = receive([b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%b" % (len(raw), raw)])
    assert exchange.error_detail == "maximum context length is 4096"


def test_a_server_that_closes_after_its_answer_is_not_used_again():
    _, connection, done = receive([STREAM.replace(b"X-Simulated: t", b"Connection: close")])
    assert done
    assert not connection.usable


def test_events_are_joined_and_comments_ignored_as_the_standard_says():
    splitter = EventSplitter()
    assert splitter.feed(b": ping\r\n\r\ndata: a\r\ndata:b\r\n\r\nid: 3\n\ndata: c") == [b"a\nb"]
    assert splitter.pending
    assert splitter.feed(b"\n\n") == [b"c"]


def test_a_request_is_whole_and_a_header_cannot_be_split():
    origin = Origin.of("https://host.example:8443/base/")
    head = request_head(origin, "/v1/completions", {"Authorization": "Bearer t"})
    request = request_bytes(head, b"{}")
    assert request.startswith(b"POST /base/v1/completions HTTP/1.1\r\nHost: host.example:8443\r\n")
    assert request.endswith(b"Content-Length: 2\r\n\r\n{}")
    with pytest.raises(ValueError, match="line breaks"):
        request_head(origin, "/", {"X": "a\r\nEvil: b"})
    with pytest.raises(ValueError, match="expected http"):
        Origin.of("ftp://host")
