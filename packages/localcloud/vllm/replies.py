"""Bodies and events of answers in vLLM's formats (`data/forms.json`): chat and text completions, and its APIs for agents on top of chats."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from localcloud.json_values import JsonObject, as_list, as_object, filled, packaged
from localcloud.vllm import VERSION
from localcloud.vllm.answers import Completion
from localcloud.vllm.requests import Request

_FINGERPRINT: Final = f"vllm-{VERSION}-simulated"
FORMS: Final = packaged("localcloud.vllm", "forms.json")
"""Bodies of responses, which `filled` completes."""
AGENT_PATHS: Final = ("/v1/responses", "/v1/messages")
DONE: Final = "data: [DONE]\n\n"
_PIECE: Final = 4
"""Characters of an event of an API for agents."""
_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@dataclass(slots=True, kw_only=True, eq=False)
class Reply:
    """The answer to one request: ids, names, usage, as one body or as events."""

    request: Request
    answer: Completion
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    hex: str = field(default_factory=lambda: uuid4().hex)

    @property
    def _head(self) -> JsonObject:
        prefix = "chatcmpl" if self.request.is_chat else "cmpl"
        return {"id": f"{prefix}-{self.hex}", "created": self.created, "model": self.model}

    def _usage(self, completion: int) -> JsonObject:
        """Return the usage after this many tokens of the answer."""
        prompt = len(self.request.chat.prompt)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": None,
            "completion_tokens_details": {"reasoning_tokens": min(completion, self.answer.reasoning_end)}
            if self.request.is_chat
            else None,
        }

    def _sent(self, completion: int) -> JsonObject:
        """Return the usage of an event, which has no nulls."""
        return {name: value for name, value in self._usage(completion).items() if value is not None}

    def _call(self, arguments: str) -> JsonObject:
        function = {"name": self.answer.tool, "arguments": arguments}
        return {"id": f"chatcmpl-tool-{self.hex[:16]}", "type": "function", "function": function}

    def body(self) -> JsonObject:
        """Return the answer in one piece."""
        answer = self.answer
        kind = "chat.completion" if self.request.is_chat else "text_completion"
        values = {
            **self._head,
            "object": kind,
            "finish_reason": answer.finish_reason,
            "content": answer.content(),
            "reasoning": answer.reasoning() or None,
            "fingerprint": _FINGERPRINT,
            "usage": self._usage(len(answer.texts)),
        }
        body = filled(FORMS[kind], values)
        if answer.tool is not None:
            calls = [self._call(answer.arguments())]
            body["choices"][0]["message"] |= {"content": answer.content() or None, "tool_calls": calls}
        return body

    def events(self, start: int, end: int) -> str:
        """Return the events of the tokens from index `start` to before `end`."""
        answer, texts, is_chat = self.answer, self.answer.texts, self.request.is_chat
        out = [self._event({"role": "assistant", "content": ""}, 0, is_first=True)] if start == 0 and is_chat else []
        reasoning = "".join(texts[start : min(end, answer.reasoning_end)])
        content = "".join(texts[max(start, answer.reasoning_end) : min(end, answer.content_end)])
        out += [self._event({"reasoning": reasoning}, end)] if reasoning else []
        out += [self._event({"content": content} if is_chat else content, end)] if content else []
        if answer.tool is not None and end > answer.content_end:
            if start <= answer.content_end:
                out.append(self._event({"tool_calls": [{**self._call(""), "index": 0}]}, start))
            arguments = "".join(texts[max(start, answer.content_end) : end])
            out.append(self._event({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}, end))
        return "".join(out)

    def as_events(self, choice: JsonObject) -> str:
        """Return all events of an answer that a fault has changed: one for the role and for each part, then the last ones."""
        message: JsonObject = choice["message"]
        calls = [{**call, "index": index} for index, call in enumerate(as_list(message.get("tool_calls")))]
        parts = {"reasoning": message.get("reasoning"), "content": message["content"], "tool_calls": calls}
        first = self._event({"role": message["role"], "content": ""}, 0, is_first=True)
        events = [self._event({name: part}, len(self.answer.texts)) for name, part in parts.items() if part]
        return "".join([first, *events, self.last_events(choice["finish_reason"])])

    def last_events(self, finish: str) -> str:
        """Return the events after the last token."""
        total = len(self.answer.texts)
        out = self._event({"content": ""} if self.request.is_chat else "", total, finish)
        if self.request.include_usage:
            out += self._data({"choices": [], "usage": self._sent(total), "system_fingerprint": _FINGERPRINT})
        return out + DONE

    def _event(self, delta: JsonObject | str, tokens: int, finish: str | None = None, *, is_first: bool = False) -> str:
        """Return an event. `is_first`: the one with the role, which has no tokens."""
        is_chat = self.request.is_chat
        choice: JsonObject = {
            "index": 0,
            "delta" if is_chat else "text": delta,
            "logprobs": None,
            "finish_reason": finish,
        }
        if finish is not None or not is_chat:
            choice["stop_reason"] = None
        choice |= {} if is_chat else {"prompt_token_ids": None}
        choice |= {} if is_first else {"token_ids": None}
        event: JsonObject = {"choices": [choice]}
        if self.request.continuous_usage:
            event["usage"] = self._sent(tokens)
        event |= {"prompt_token_ids": None, "prompt_text": None} if is_first else {}
        if finish is not None and not self.request.include_usage:
            event["system_fingerprint"] = _FINGERPRINT
        return self._data(event)

    def _data(self, event: JsonObject) -> str:
        kind = "chat.completion.chunk" if self.request.is_chat else "text_completion"
        return f"data: {json.dumps({**self._head, 'object': kind, **event})}\n\n"


def agent_chat(body: JsonObject) -> JsonObject:
    """Return a request of an API for agents as one of chat completions."""
    given = body.get("input", body.get("messages"))
    system = body.get("instructions", body.get("system"))
    messages: list[JsonObject] = [] if system is None else [{"role": "system", "content": system}]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else map(as_object, as_list(given)):
        for block in map(as_object, as_list(item.get("content")) or [item]):
            kind = str(block.get("type"))
            if kind in {"function_call", "tool_use"}:
                messages.append({"role": "assistant", "tool_calls": [block]})
            elif kind in {"function_call_output", "tool_result"}:
                messages.append({"role": "tool", "content": block.get("output", block.get("content"))})
            else:
                text = item.get("content") if block is item else [{**block, "type": kind.removeprefix("input_")}]
                messages.append({"role": item.get("role"), "content": text})
    tools = [
        {"type": "function", "function": {**tool, "parameters": tool.get("input_schema", tool.get("parameters"))}}
        for tool in map(as_object, as_list(body.get("tools")))
    ]
    limit = body.get("max_output_tokens", body.get("max_tokens"))
    return {**body, "messages": messages, "tools": tools or None, "max_tokens": limit}


def agent_reply(path: str, chat: JsonObject) -> tuple[JsonObject, list[str]]:
    """Return the response of an API for agents in one piece, and the events of its stream, for a response of chat completions."""
    forms = as_object(FORMS[path])
    (choice,) = chat["choices"]
    message, finish = choice["message"], choice["finish_reason"]
    values = {**chat, **as_object(chat.get("usage")), "stop_reason": _STOP_REASONS.get(finish)}
    values["status"] = "incomplete" if finish == "length" else "completed"
    found = {"reasoning": message.get("reasoning"), "text": message["content"]}
    for call in message.get("tool_calls", ()):
        arguments = found["call"] = call["function"]["arguments"]
        given: JsonObject = {}
        with suppress(ValueError):
            given = as_object(json.loads(arguments))
        values |= {"call_id": call["id"], "name": call["function"]["name"], "input": given}
    parts: list[JsonObject] = []
    events: list[JsonObject] = []
    for kind, text in found.items():
        if text:
            form: dict[str, Any] = forms["parts"][kind]
            more = {**values, "text": text, "index": len(parts)}
            parts.append(filled(form["whole"], more))
            more["whole"] = parts[-1]
            pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
            deltas = [filled(form["delta"], {**more, "piece": piece}) for piece in pieces]
            events += [*filled(form["start"], more), *deltas, *filled(form["end"], more)]
    begun = filled(forms["response"], {**values, "parts": [], "stop_reason": None, "status": "in_progress"})
    whole = filled(forms["response"], {**values, "parts": parts})
    events = [
        filled(forms["opening"], {"response": begun}),
        *events,
        *filled(forms["closing"], {**values, "response": whole}),
    ]
    return whole, [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
