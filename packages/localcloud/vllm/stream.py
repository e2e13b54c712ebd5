"""Write a completion as server-sent events or as one JSON body, in vLLM's format."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from localcloud.json_values import filled, packaged
from localcloud.vllm import VERSION
from localcloud.vllm.engine import Sequence
from localcloud.vllm.faults import RequestFaults
from localcloud.vllm.generation import Completion
from localcloud.vllm.protocol import Request

_FINGERPRINT: Final = f"vllm-{VERSION}-simulated"
FORMS: Final = packaged("localcloud.vllm", "forms.json")
"""Bodies of responses, which `filled` completes."""
_DONE: Final = b"data: [DONE]\n\n"
_MALFORMED: Final = b'data: {"choices": [{"delta": {"cont\n\n'


@dataclass(kw_only=True, eq=False)
class CompletionReply:
    """Base of both kinds of reply: ids, names, usage. `finished` is set when the last token is due."""

    request: Request
    answer: Completion
    model: str
    cached_details: bool
    faults: RequestFaults
    sequence: Sequence | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Choose the reply's identifiers."""
        self.created = int(time.time())
        self.id = f"{'chatcmpl' if self.request.is_chat else 'cmpl'}-{uuid4().hex}"
        self.tool_id = f"chatcmpl-tool-{uuid4().hex[:16]}"

    def usage(self, completion: int) -> dict[str, Any]:
        """Return the usage after this many tokens of the response."""
        prompt = len(self.request.prompt)
        cached = self.sequence.cached if self.sequence is not None else 0
        details = {"cached_tokens": cached} if self.cached_details and cached else None
        reasoning = {"reasoning_tokens": min(completion, self.answer.reasoning_end)} if self.request.is_chat else None
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": details,
            "completion_tokens_details": reasoning,
        }

    def head(self, kind: str) -> dict[str, Any]:
        """Return the fields that every body starts with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


@dataclass(kw_only=True, eq=False)
class WholeReply(CompletionReply):
    """A reply in one JSON body."""

    reset: bool = False

    def emit(self, start: int, end: int) -> None:
        """Count tokens. The body is sent after the last one."""
        del start
        if self.faults.reset_after is not None and end >= self.faults.reset_after:
            self.reset = True
            self.finished.set()
        if end == len(self.answer.texts):
            self.finished.set()

    def abort(self, end: int) -> None:
        """Return what was generated."""
        self.answer = self.answer.aborted(end)
        self.finished.set()

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        answer = self.answer
        kind = "chat.completion" if self.request.is_chat else "text_completion"
        values = {**self.head(kind), "finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}
        values |= {"content": answer.content(), "reasoning": answer.reasoning() or None, "fingerprint": _FINGERPRINT}
        body = filled(FORMS[kind], {**values, "usage": self.usage(len(answer.texts))})
        if answer.tool is not None:
            function = {"name": answer.tool.name, "arguments": answer.arguments()}
            calls = [{"id": self.tool_id, "type": "function", "function": function}]
            body["choices"][0]["message"] |= {"content": answer.content() or None, "tool_calls": calls}
        if self.faults.no_usage:
            del body["usage"]
        return body


@dataclass(kw_only=True, eq=False)
class StreamReply(CompletionReply):
    """A streamed reply: writes events to the connection when they are due.

    It writes HTTP chunks directly to the transport, one write per call, because aiohttp's layer costs more than all the rest.
    """

    force_usage: bool

    def __post_init__(self) -> None:
        """Prepare the parts that all events share."""
        super().__post_init__()
        request = self.request
        self._transport: asyncio.Transport | None = None
        self._usage_at_end = (request.include_usage or self.force_usage) and not self.faults.no_usage
        self._usage_always = request.continuous_usage and not self.faults.no_usage
        kind = "chat.completion.chunk" if request.is_chat else "text_completion"
        head = json.dumps(self.head(kind))[:-1]
        self._head = f'data: {head}, "choices": ['
        self._opening = f'{self._head}{{"index": 0, ' + ('"delta": {"content": ' if request.is_chat else '"text": ')
        closing = "}" if request.is_chat else ""
        more = "" if request.is_chat else ', "stop_reason": null, "prompt_token_ids": null'
        self._closing = f'{closing}, "logprobs": null, "finish_reason": null{more}, "token_ids": null}}]'

    def attach(self, transport: asyncio.Transport) -> None:
        """Set the transport, after the headers are sent."""
        self._transport = transport

    def emit(self, start: int, end: int) -> None:
        """Write the events of these tokens."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self.finished.set()
            return
        faults = self.faults
        if faults.reset_after is not None and end >= faults.reset_after:
            transport.abort()
            self.finished.set()
            return
        events = self._events(start, end)
        if faults.malformed_after is not None and end >= faults.malformed_after:
            faults.malformed_after = None
            events = _MALFORMED + events
        if end == len(self.answer.texts):
            events += self._last_events()
            self.finished.set()
        transport.write(b"%x\r\n%b\r\n" % (len(events), events))

    def abort(self, end: int) -> None:
        """Write the last events after `end` tokens."""
        self.answer = self.answer.aborted(end)
        self.finished.set()
        if self._transport is not None and not self._transport.is_closing():
            events = self._last_events()
            self._transport.write(b"%x\r\n%b\r\n" % (len(events), events))

    def _events(self, start: int, end: int) -> bytes:
        answer = self.answer
        # The common case first: one token of content in the middle of the stream.
        if start and answer.reasoning_end <= start and end <= answer.content_end and not self._usage_always:
            texts = answer.texts
            text = texts[start] if end - start == 1 else "".join(texts[start:end])
            return f"{self._opening}{_quoted(text)}{self._closing}}}\n\n".encode() if text else b""
        return "".join(self._uncommon_events(start, end)).encode()

    def _uncommon_events(self, start: int, end: int) -> list[str]:
        answer, texts = self.answer, self.answer.texts
        out: list[str] = []
        if start == 0 and self.request.is_chat:
            out.append(self._event({"role": "assistant", "content": ""}, 0, is_first=True))
        reasoning = "".join(texts[start : min(end, answer.reasoning_end)])
        if reasoning:
            out.append(self._event({"reasoning": reasoning}, end))
        content = "".join(texts[max(start, answer.reasoning_end) : min(end, answer.content_end)])
        if content:
            out.append(self._event({"content": content} if self.request.is_chat else content, end))
        if answer.tool is not None and end > answer.content_end:
            out.extend(self._tool_events(max(start, answer.content_end), end))
        return out

    def _tool_events(self, start: int, end: int) -> list[str]:
        answer, out = self.answer, list[str]()
        if start == answer.content_end and answer.tool is not None:
            call = {"id": self.tool_id, "type": "function", "index": 0}
            named = {**call, "function": {"name": answer.tool.name, "arguments": ""}}
            out.append(self._event({"tool_calls": [named]}, start))
        arguments = "".join(answer.texts[start:end])
        if arguments:
            out.append(self._event({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}, end))
        return out

    def _event(
        self, delta: dict[str, Any] | str, tokens: int, finish: str | None = None, *, is_first: bool = False
    ) -> str:
        """Return an event. `is_first`: the one with the role, which has no tokens."""
        choice: dict[str, Any] = {"index": 0, "delta" if self.request.is_chat else "text": delta}
        choice |= {"logprobs": None, "finish_reason": finish}
        if finish is not None or not self.request.is_chat:
            choice["stop_reason"] = None if finish is None else self.answer.stop_reason
        if not self.request.is_chat:
            choice["prompt_token_ids"] = None
        if not is_first:
            choice["token_ids"] = None
        more: dict[str, Any] = {"usage": self._usage(tokens)} if self._usage_always else {}
        if is_first:
            more |= {"prompt_token_ids": None, "prompt_text": None}
        if finish is not None and not self._usage_at_end:
            more["system_fingerprint"] = _FINGERPRINT
        return f"{self._head}{json.dumps(choice)}]{_fields(more)}}}\n\n"

    def _usage(self, tokens: int) -> dict[str, Any]:
        """Return the usage as a stream has it: without empty details."""
        return {name: value for name, value in self.usage(tokens).items() if value is not None}

    def _last_events(self) -> bytes:
        total = len(self.answer.texts)
        out = self._event({"content": ""} if self.request.is_chat else "", total, self.answer.finish_reason)
        if self._usage_at_end:
            more = {"usage": self._usage(total), "system_fingerprint": _FINGERPRINT}
            out += f"{self._head}]{_fields(more)}}}\n\n"
        return out.encode() + _DONE


def as_events(body: dict[str, Any]) -> str:
    """Return a whole chat completion as a stream: an event for the role and for each part, then the usage."""
    (choice,) = body["choices"]
    message: dict[str, Any] = choice["message"]
    head: dict[str, Any] = {
        "id": body["id"],
        "object": "chat.completion.chunk",
        "created": body["created"],
        "model": body["model"],
    }
    given: list[dict[str, Any]] = message.get("tool_calls") or []
    calls = [{**call, "index": index} for index, call in enumerate(given)]
    parts: dict[str, Any] = {"reasoning": message.get("reasoning"), "content": message["content"], "tool_calls": calls}
    opening: dict[str, Any] = {"role": message["role"], "content": ""}
    deltas = [opening, *({name: part} for name, part in parts.items() if part)]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]})
    events: list[dict[str, Any]] = [
        *({**head, "choices": [one]} for one in choices),
        {**head, "choices": [], "usage": body.get("usage")},
    ]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + _DONE.decode()


def _fields(fields: dict[str, Any]) -> str:
    """Return fields of a JSON object after others."""
    return "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())


_QUOTED: Final[dict[str, str]] = {}
_QUOTED_MOST: Final = 4096


def _quoted(text: str) -> str:
    """Return text as JSON. The simulator's words repeat, so the results are cached."""
    quoted = _QUOTED.get(text)
    if quoted is None:
        quoted = json.dumps(text)
        if len(_QUOTED) < _QUOTED_MOST:
            _QUOTED[text] = quoted
    return quoted
