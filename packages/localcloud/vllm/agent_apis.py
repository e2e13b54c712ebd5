"""vLLM's APIs for coding agents, `/v1/responses` and `/v1/messages`, on top of chat completions.

Texts, function calls and their results are converted. A stream has all its events at once, in the forms of `data/forms.json`.
"""

import json
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final

from aiohttp import web

from localcloud.json_values import JsonObject, as_list, as_object, filled
from localcloud.vllm.stream import FORMS

PATHS: Final = ("/v1/responses", "/v1/messages")
_PIECE: Final = 4
"""Characters of a stream's event."""
_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def as_chat(body: JsonObject) -> JsonObject:
    """Return a request of either API as one of chat completions."""
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


def reply(path: str, chat: JsonObject, broken: AbstractSet[str], *, stream: bool) -> web.Response:
    """Return the response of the API at a path, for a response of chat completions."""
    whole, events = _answered(as_object(FORMS[path]), chat)
    if not stream:
        return web.json_response(whole)
    if f"breaks_{path.rpartition('/')[2]}" in broken:
        events.pop()
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return web.Response(text=text, content_type="text/event-stream", charset="utf-8")


def _answered(forms: JsonObject, chat: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """Return the response in one piece, and the events of its stream."""
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
            form, more = forms["parts"][kind], {**values, "text": text, "index": len(parts)}
            parts.append(filled(form["whole"], more))
            more["whole"] = parts[-1]
            pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
            deltas = [filled(form["delta"], {**more, "piece": piece}) for piece in pieces]
            events += [*filled(form["start"], more), *deltas, *filled(form["end"], more)]
    begun = filled(forms["response"], {**values, "parts": [], "stop_reason": None, "status": "in_progress"})
    whole = filled(forms["response"], {**values, "parts": parts})
    closing = filled(forms["closing"], {**values, "response": whole})
    return whole, [filled(forms["opening"], {"response": begun}), *events, *closing]
