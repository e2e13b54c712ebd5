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

A broken answer is drawn by `broken_answers` with the key `seed`, in each response or with `only_stream: 1` in streams; a broken feature has no
further keys. `data/faults.json` has the source of each kind: a public report, a file of vLLM, or `ours`.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from localcloud.json_values import as_list, as_object, packaged, strings
from localcloud.vllm.broken_answers import Choice, broken
from localcloud.vllm.media_items import KINDS
from localcloud.vllm.protocol import Request

_TABLES: Final = packaged("localcloud.vllm", "faults.json")
BROKEN_FEATURES: Final[dict[str, str]] = {kind: row["effect"] for kind, row in _TABLES["broken"].items()}
"""Kind -> effect."""
_KEYS: Final[dict[str, frozenset[str]]] = {
    kind: frozenset(strings(row, "keys")) for table in _TABLES.values() for kind, row in table.items()
}
_LONG: Final = 2000
"""Characters of a message from which it is cut."""


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
    answers: list[tuple[str, Mapping[str, float]]] = field(default_factory=list[tuple[str, Mapping[str, float]]])
    """Kinds of broken answers, with their options."""
    broken: set[str] = field(default_factory=set[str])
    """Kinds of broken features."""

    def broken_choice(self, choice: Choice, *, is_stream: bool) -> Choice:
        """Return a choice of a chat completion as the model writes it and the parsers of the server leave it."""
        for kind, options in self.answers:
            if is_stream or not options.get("only_stream"):
                choice = broken(choice, kind, Random(options.get("seed", 0))) or choice  # noqa: S311 - no secret
        return choice


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
        case kind if kind in BROKEN_FEATURES:
            faults.broken.add(kind)
        case kind:
            faults.answers.append((kind, options))


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


def broken_body(body: Mapping[str, Any], kinds: AbstractSet[str]) -> Mapping[str, Any]:
    """Return a chat request as the model gets it."""
    messages = [as_object(message) for message in as_list(body.get("messages"))]
    if "ignores_system" in kinds:
        messages = [message for message in messages if message.get("role") not in {"system", "developer"}]
    if "ignores_media" in kinds:
        messages = [{**message, "content": _without_media(message.get("content"))} for message in messages]
    if "cuts_prompts" in kinds:
        messages = [{**message, "content": _cut(message.get("content"))} for message in messages]
    return {**body, "messages": messages}


def _without_media(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [part for part in as_list(content) if as_object(part).get("type") not in KINDS]  # pyright: ignore[reportUnknownArgumentType]


def _cut(content: object) -> object:
    return content[len(content) // 2 :] if isinstance(content, str) and len(content) > _LONG else content


def broken_request(request: Request, kinds: AbstractSet[str]) -> Request:
    """Return a request as the model understands it."""
    return replace(request, model=None) if kinds & {"answers_as_base", "ignores_adapters"} else request
