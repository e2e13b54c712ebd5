"""Injected faults, set by the environment variable VLLM_SIM_FAULTS or by `POST /_sim/faults` from the loopback address.

A fault is `{"kind": ..., "after": N, "times": N, ...}`: it affects `times` requests (default: all) after the first `after` requests.

| kind | effect | further keys |
| --- | --- | --- |
| `crash` | the process exits immediately, without a response | |
| `status` | an error response | `status` (429 or 503 or any other error), `retry_after_s` |
| `stall` | the stream stops | `after_tokens`, `seconds` |
| `reset` | the connection is reset | `after_tokens` |
| `malformed` | one event of the stream is not JSON | `after_tokens` |
| `no_usage` | usage is missing from the response | |

A broken feature of BROKEN_FEATURES has no further keys. `data/faults.json` has the source of each kind: a public report, a file of vLLM, or `ours`.
"""

import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

from localcloud.json_values import as_list, as_object, packaged, strings
from localcloud.vllm import tokens
from localcloud.vllm.generation import Completion
from localcloud.vllm.media_items import KINDS
from localcloud.vllm.protocol import Request

_TABLES: Final = packaged("localcloud.vllm", "faults.json")
BROKEN_FEATURES: Final[dict[str, str]] = {kind: row["effect"] for kind, row in _TABLES["broken"].items()}
"""Kind -> effect."""
_KEYS: Final[dict[str, frozenset[str]]] = {
    kind: frozenset(strings(row, "keys")) for kind, row in {**_TABLES["kinds"], **_TABLES["broken"]}.items()
}
_LONG: Final = 2000
"""Characters of a message from which it is cut."""
_MANY_TOOLS: Final = 10
_REPEATS: Final = 200


class FaultError(Exception):
    """A fault is invalid. The message names the key, the value and the allowed values."""


@dataclass(slots=True, kw_only=True)
class _InjectedFault:
    kind: str
    after: int
    times: int | None
    options: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class RequestFaults:
    """The faults of one request."""

    crash: bool = False
    status: int | None = None
    retry_after_s: float | None = None
    stall: tuple[int, float] | None = None
    reset_after: int | None = None
    malformed_after: int | None = None
    no_usage: bool = False
    broken: set[str] = field(default_factory=set[str])
    """Kinds of broken features."""


class InjectedFaults:
    """The active faults."""

    def __init__(self, described: Iterable[Mapping[str, Any]] = ()) -> None:
        self._faults: list[_InjectedFault] = []
        self.replace(described)

    def replace(self, described: Iterable[Mapping[str, Any]]) -> None:
        """Replace all faults. Raises FaultError without changing anything."""
        self._faults = [_read(item) for item in described]

    def listed(self) -> list[dict[str, Any]]:
        """Return the faults that are still active."""
        return [
            {"kind": item.kind, "after": item.after, "times": item.times, **item.options}
            for item in self._faults
            if item.times != 0
        ]

    def inject(self) -> RequestFaults:
        """Count one request and return the faults to inject into it."""
        faults = RequestFaults()
        for fault in self._faults:
            if fault.after > 0:
                fault.after -= 1
                continue
            if fault.times == 0:
                continue
            if fault.times is not None:
                fault.times -= 1
            _apply(fault, faults)
        return faults


def _apply(fault: _InjectedFault, faults: RequestFaults) -> None:
    options = fault.options
    at = int(options.get("after_tokens", 1))
    match fault.kind:
        case "crash":
            faults.crash = True
        case "status":
            faults.status = int(options.get("status", 503))
            faults.retry_after_s = options.get("retry_after_s")
        case "stall":
            faults.stall = (at, options.get("seconds", 3600.0))
        case "reset":
            faults.reset_after = at
        case "malformed":
            faults.malformed_after = at
        case "no_usage":
            faults.no_usage = True
        case _:
            faults.broken.add(fault.kind)


def _read(given: object) -> _InjectedFault:
    item = as_object(given)
    kind = item.get("kind")
    if kind not in _KEYS:
        raise FaultError(f"each fault needs a kind, one of {', '.join(_KEYS)}; got {given!r}")
    unknown = set(item) - {"kind", "after", "times"} - _KEYS[kind]
    if unknown:
        allowed = ", ".join(sorted({"after", "times", *_KEYS[kind]}))
        raise FaultError(f"the fault {kind} has no key {min(unknown)!r}; its keys are {allowed}")
    for key, value in item.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        if key != "kind" and value is not None and not is_number:
            raise FaultError(f"{key} of the fault {kind} is {value!r}, expected a number of 0 or more")
    status = item.get("status", 503)
    if not 400 <= status <= 599:  # noqa: PLR2004 - HTTP's errors
        raise FaultError(f"status of the fault is {status}, expected an error status from 400 to 599")
    times = item.get("times")
    return _InjectedFault(
        kind=kind,
        after=int(item.get("after", 0)),
        times=None if times is None else int(times),
        options={key: item[key] for key in _KEYS[kind] if item.get(key) is not None},
    )


def broken_body(body: Mapping[str, Any], broken: AbstractSet[str]) -> Mapping[str, Any]:
    """Return a chat request as the model gets it."""
    messages = [as_object(message) for message in as_list(body.get("messages"))]
    if "ignores_tool_results" in broken:
        messages = [message for message in messages if message.get("role") != "tool"]
    if "ignores_system" in broken:
        messages = [message for message in messages if message.get("role") not in {"system", "developer"}]
    if "ignores_media" in broken:
        messages = [{**message, "content": _without_media(message.get("content"))} for message in messages]
    if "cuts_prompts" in broken:
        messages = [{**message, "content": _cut(message.get("content"))} for message in messages]
    thinks = as_object(body.get("chat_template_kwargs")).get("enable_thinking") is True
    dropped = {"response_format"} if "ignores_schema" in broken and thinks else set[str]()
    if "drops_forced_choice" in broken and body.get("tool_choice") not in (None, "auto", "none"):
        dropped |= {"tools", "tool_choice"}
    return {**{key: value for key, value in body.items() if key not in dropped}, "messages": messages}


def _without_media(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [part for part in as_list(content) if as_object(part).get("type") not in KINDS]  # pyright: ignore[reportUnknownArgumentType]


def _cut(content: object) -> object:
    return content[len(content) // 2 :] if isinstance(content, str) and len(content) > _LONG else content


def broken_request(request: Request, broken: AbstractSet[str]) -> Request:
    """Return a request as the model understands it."""
    if "knows_nothing" in broken:
        request = replace(request, question="?", told="", system="", tool_result="", media=())
    return replace(request, model=None) if broken & {"answers_as_base", "ignores_adapters"} else request


def broken_completion(made: Completion, broken: AbstractSet[str], *, stream: bool, tools: int) -> Completion:
    """Return a completion as the model writes it and the parsers of the server leave it. `tools`: their number in the request."""
    if "repeats_text" in broken and tools >= _MANY_TOOLS:
        texts = ["own "] * _REPEATS
        return replace(made, texts=texts, reasoning_end=0, content_end=_REPEATS, tool=None, finish_reason="length")
    if "leaks_reasoning" in broken and made.reasoning_end:
        made = replace(made, texts=["thought\n", *made.texts], reasoning_end=0, content_end=made.content_end + 1)
    leaks = made.reasoning_end > 0 and "leaks_tool_calls" in broken
    if stream and "streams_no_reasoning" in broken:
        content_end = made.content_end - made.reasoning_end
        made = replace(made, texts=made.texts[made.reasoning_end :], reasoning_end=0, content_end=content_end)
    if made.tool is None:
        return made
    if leaks or (stream and "streams_calls_as_text" in broken):
        texts = _with_end(made, f"<|tool_call>call:{made.tool.name}{made.arguments()}<tool_call|>")
        return replace(made, texts=texts, content_end=len(texts), tool=None, finish_reason="stop")
    arguments = made.arguments()
    if "marks_arguments" in broken:
        arguments = arguments.replace(': "', ': "<|\\"|')
    if "omits_required" in broken:
        arguments = json.dumps(dict([*json.loads(arguments).items()][1:]))
    if stream and "cuts_arguments" in broken:
        arguments = f"{arguments[:-3]}{arguments[-2:]}"
    return replace(made, texts=_with_end(made, arguments))


def _with_end(made: Completion, text: str) -> list[str]:
    """Return the completion's tokens with another text in place of its arguments."""
    return [*made.texts[: made.content_end], *(piece.decode() for piece in tokens.pieces(text))]
