"""Parser of OpenAI-compatible responses: deltas, usage, errors.

Pure functions over decoded JSON, shared by the smoke checks and the benchmark, so both stop the clock at the same event.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from loadtest.client.json_values import as_list, as_mapping
from loadtest.client.plain_text import for_terminal

DONE: Final = b"[DONE]"
FAILED_FINISHES: Final = {"abort": "abort", "error": "finish_error", "content_filter": "content_filter"}
"""Finish reasons of responses that differ from the request, with the kind of failure. vLLM aborts requests, for example at shutdown."""
SIMULATED_HEADER: Final = "x-simulated"
EVENT_LIMIT_BYTES: Final = 2**20
"""Maximum size of one event of a stream. An event of vLLM has less than a kilobyte, or the arguments of one tool call."""
MESSAGE_LIMIT: Final = 300
"""Maximum characters of a server's message in reports."""


class ServerError(Exception):
    """The server's response is not usable. The message is one sentence about it."""


def oversized(what: str, limit_bytes: int) -> ServerError:
    """Return the error of a response that no model server sends."""
    return ServerError(
        f"{what} has more than {limit_bytes // 2**20} MiB. Check that a model server is at this address."
    )


def decode_rate(tokens: int | None, first_s: float | None, last_s: float | None) -> float | None:
    """Return the output tokens after the first, divided by their time; None with fewer than two, or if one is unknown."""
    if tokens is None or tokens <= 1 or first_s is None or last_s is None:
        return None
    span_s = last_s - first_s
    return (tokens - 1) / span_s if span_s > 0 else None


def decoded(raw: bytes) -> object:
    """Return a body as JSON types, or as text if it is not JSON."""
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One row of /v1/models."""

    id: str
    max_model_len: int | None
    simulator: str | None
    """Name of the simulator that owns the model, or None for a real server."""


def served_models(body: object) -> list[ServedModel]:
    """Return the models listed at a server's /v1/models, without rows that have no id."""
    rows = [as_mapping(row) for row in as_list(as_mapping(body).get("data"))]
    return [
        ServedModel(
            id=str(row["id"]),
            max_model_len=_int(row.get("max_model_len")),
            simulator=str(row["owned_by"]) if "simulated" in str(row.get("owned_by", "")) else None,
        )
        for row in rows
        if "id" in row
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts stated by the server, the only source of counts, because a stream chunk is not a token."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens from the prefix cache, or None if the server does not state them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Content of one stream event, or of a whole response."""

    text: str = ""
    """New characters of the response (`content`, or `text` of a completion)."""
    reasoning: str = ""
    """New characters of the reasoning (`reasoning`, or `reasoning_content` of older servers)."""
    tool_calls: Sequence[object] = ()
    """Pieces of tool calls, or whole ones."""
    role: str | None = None
    """Role that the event has, like the first event of a chat; empty if it is null."""
    has_choice: bool = False
    """True if the event belongs to a choice, unlike usage and errors."""
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None

    @property
    def generated(self) -> bool:
        """True if the event has output. The time to first token ends with the first such event, not with the role."""
        return bool(self.text or self.reasoning or self.tool_calls)

    @property
    def opens(self) -> bool:
        """True if the event has only the role. It is not timed when it comes first."""
        return self.role is not None and not self.generated and self.finish_reason is None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def parse_usage(value: object) -> Usage | None:
    """Return the `usage` of a response or an event, or None if it is missing or malformed."""
    usage = as_mapping(value)
    prompt, completion = _int(usage.get("prompt_tokens")), _int(usage.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    cached = _int(as_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def error_message(value: object) -> str:
    """Return the message of an error body: `error.message`, `message`, `detail`, or the body itself, shortened."""
    found: object = value
    if isinstance(value, dict):
        body = cast("Mapping[str, object]", value)
        error = body.get("error", body)
        if isinstance(error, dict):
            inner = cast("Mapping[str, object]", error)
            found = inner.get("message") or inner.get("detail") or json.dumps(inner)
        else:
            found = error
    text = for_terminal(" ".join(str(found).split()))
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def _text(mapping: Mapping[str, object], key: str) -> str:
    value = mapping.get(key)
    return value if isinstance(value, str) else ""


def parse_event(payload: bytes | str) -> Delta:
    """Read one `data:` payload of a chat or text completion stream. The caller handles `[DONE]`.

    Raises ValueError if it is not a JSON object.
    """
    decoded: object = json.loads(payload)
    if not isinstance(decoded, dict):
        raise ValueError(f"a stream event must be a JSON object, got {type(decoded).__name__}")  # noqa: TRY004 - callers catch one kind
    return delta_of(as_mapping(cast("object", decoded)))


def delta_of(event: Mapping[str, object]) -> Delta:
    """Return the content of a stream event, or of a response in one piece, whose `message` is one delta."""
    if "error" in event or event.get("object") == "error":
        return Delta(error=error_message(event))
    usage = parse_usage(event.get("usage"))
    choices = as_list(event.get("choices"))
    if not choices:
        return Delta(usage=usage)
    choice = as_mapping(choices[0])
    finish = choice.get("finish_reason")
    parts = as_mapping(choice.get("delta", choice.get("message")))
    return Delta(
        text=_text(parts, "content") or _text(choice, "text"),
        reasoning=_text(parts, "reasoning") or _text(parts, "reasoning_content"),
        tool_calls=as_list(parts.get("tool_calls")),
        role=_text(parts, "role") if "role" in parts else None,
        has_choice=True,
        finish_reason=finish if isinstance(finish, str) else None,
        usage=usage,
    )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call. `arguments` is JSON text."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """The message of a chat response: in one piece, or joined from the events of a stream."""

    role: str
    """Empty if the response has none."""
    text: str
    reasoning: str
    tool_calls: Sequence[ToolCall]
    finish_reason: str | None


def joined(deltas: Sequence[Delta]) -> ChatMessage:
    """Return the message that deltas add up to. Pieces of a tool call have the same `index`, and whole calls have none."""
    calls: dict[object, ToolCall] = {}
    for place, piece in enumerate(as_mapping(piece) for delta in deltas for piece in delta.tool_calls):
        index, function = piece.get("index", place), as_mapping(piece.get("function"))
        call = calls.get(index, ToolCall())
        arguments = call.arguments + _text(function, "arguments")
        calls[index] = ToolCall(call.id or _text(piece, "id"), call.name or _text(function, "name"), arguments)
    return ChatMessage(
        role=next((delta.role for delta in deltas if delta.role), ""),
        text="".join(delta.text for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=list(calls.values()),
        finish_reason=next((delta.finish_reason for delta in reversed(deltas) if delta.finish_reason), None),
    )


def _as_error(payload: bytes) -> bytes:
    """Return the payload of an error event in the form that `parse_event` reads as an error."""
    body = decoded(payload)
    return payload if "error" in as_mapping(body) else json.dumps({"error": body}).encode()


class EventSplitter:
    """Split a byte stream into the payloads of its server-sent events.

    Events end with a blank line, and lines with LF or CRLF. Several `data:` lines of one event are joined with a line feed. An event
    that its `event:` field names `error` becomes a payload with the key `error`. Comments and other fields are ignored. Bytes may be
    cut anywhere.
    """

    __slots__ = ("_is_error", "_lines", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] = []
        self._is_error = False
        self._size = 0
        """Bytes of the event's lines."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads completed by `data`, in order. Raises ServerError for an event above EVENT_LIMIT_BYTES."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        found: list[bytes] = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
                self._size += len(line)
            elif not line:
                if self._lines:
                    payload = b"\n".join(self._lines)
                    found.append(_as_error(payload) if self._is_error else payload)
                    self._lines, self._size = [], 0
                self._is_error = False
            elif line.startswith(b"event:"):
                self._is_error = line[6:].strip() == b"error"
        if self._size + len(self._rest) > EVENT_LIMIT_BYTES:
            raise oversized("An event of the stream", EVENT_LIMIT_BYTES)
        return found

    @property
    def is_idle(self) -> bool:
        """True if no bytes are pending, so the next byte starts an event."""
        return not self._rest and not self._lines and not self._is_error

    @property
    def pending(self) -> bool:
        """True if an event is incomplete, so the stream was cut."""
        return bool(self._rest.strip() or self._lines)
