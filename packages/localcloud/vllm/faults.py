"""Planted faults of a model server: one list, in the scenario's `model_server_faults` or in the file that VLLM_SIM_FAULTS names.

A fault hits the `nth` request of a path and the `count` - 1 after it, each with one effect:

- `status`: an error with this status (and `message`);
- `cut`: the connection is cut after this many tokens, or events of `/v1/responses` and `/v1/messages`;
- `silent`: no answer, until the client leaves;
- `broken`: an answer with a fault of `broken_answers`, drawn with `seed`, or a request without a part (`LOST`).
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Any, Final

from localcloud.json_values import JsonObject, as_list, as_object
from localcloud.vllm.broken_answers import KINDS, Choice, broken

_LONG: Final = 2000
"""Characters of a message from which it is cut."""
_EFFECTS: Final = ("status", "cut", "silent", "broken")


class FaultError(ValueError):
    """A fault is invalid. The message names the key, the value and the allowed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServerFault:
    """One fault. `path` is a pattern, such as `/v1/*`; `only_stream`: only streamed answers break."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - the scenario has a list of these

    path: str
    nth: int = 1
    count: int = 1
    status: int | None = None
    message: str = "planted"
    cut: int | None = None
    silent: bool = False
    broken: str = ""
    seed: int = 0
    only_stream: bool = False

    def __post_init__(self) -> None:
        """Raise FaultError if it has no effect, or an unknown one."""
        given = [name for name in _EFFECTS if getattr(self, name) not in (None, False, "")]
        if len(given) != 1:
            raise FaultError(
                f"a fault of {self.path} has {', '.join(given) or 'no effect'}, expected one of {', '.join(_EFFECTS)}"
            )
        if self.broken and self.broken not in {*KINDS, *LOST}:
            raise FaultError(f"broken is {self.broken!r}, expected one of {', '.join((*KINDS, *LOST))}")
        if self.nth < 1 or self.count < 1:
            raise FaultError(f"nth is {self.nth} and count {self.count}, expected numbers of 1 or more")

    def request(self, body: JsonObject) -> JsonObject:
        """Return a request as the model gets it."""
        return LOST[self.broken](body) if self.broken in LOST else body

    def answer(self, choice: Choice, *, is_stream: bool) -> Choice:
        """Return a choice of a chat completion as the model writes it and the parsers of the server leave it."""
        if self.broken not in KINDS or (self.only_stream and not is_stream):
            return choice
        return broken(choice, self.broken, Random(self.seed)) or choice  # noqa: S311 - no secret


class PlantedFaults:
    """The faults of one server. A list in a file is read again when the file changes, and the requests are counted from then on."""

    def __init__(self, given: str) -> None:
        """Take the value of VLLM_SIM_FAULTS: a JSON list, or the path of a file with one. Raises FaultError."""
        self._file = None if not given or given.startswith("[") else Path(given)
        self._faults = read_faults("" if self._file is not None else given)
        self._written_at: int = 0
        self._seen: Counter[str] = Counter()

    def of(self, path: str) -> ModelServerFault | None:
        """Count a request, and return its fault."""
        if self._file is not None:
            self._read_again(self._file)
        self._seen[path] += 1
        number = self._seen[path]
        hit = (one for one in self._faults if fnmatchcase(path, one.path) and 0 <= number - one.nth < one.count)
        return next(hit, None)

    def _read_again(self, file: Path) -> None:
        written_at = file.stat().st_mtime_ns if file.is_file() else 0
        if written_at != self._written_at:
            text = file.read_text(encoding="utf-8") if written_at else ""
            self._written_at, self._faults, self._seen = written_at, read_faults(text), Counter()


def read_faults(text: str) -> Sequence[ModelServerFault]:
    """Read a JSON list of faults. Raises FaultError."""
    try:
        rows: object = json.loads(text or "[]")
    except ValueError as error:
        raise FaultError(f"VLLM_SIM_FAULTS is neither a file nor a JSON list: {error}") from error
    try:
        return [ModelServerFault(**row) for row in as_list(rows)]
    except TypeError as error:
        raise FaultError(f"a fault is not of the form {{path, nth, count, effect}}: {error}") from error


def _messages(body: JsonObject, change: Callable[[JsonObject], JsonObject | None]) -> JsonObject:
    """Return a chat whose messages are changed; one that is changed to None is dropped."""
    changed = map(change, map(as_object, as_list(body.get("messages"))))
    return {**body, "messages": [message for message in changed if message is not None]}


def _without_media(message: JsonObject) -> JsonObject:
    content: object = message.get("content")
    kept = [part for part in as_list(content) if as_object(part).get("type") == "text"]
    return {**message, "content": kept if isinstance(content, list) else content}


def _cut(message: JsonObject) -> JsonObject:
    content: Any = message.get("content")
    return {
        **message,
        "content": content[len(content) // 2 :] if isinstance(content, str) and len(content) > _LONG else content,
    }


LOST: Final[Mapping[str, Callable[[JsonObject], JsonObject]]] = {
    "lost_media": lambda body: _messages(body, _without_media),
    "lost_system": lambda body: _messages(body, lambda message: None if message.get("role") == "system" else message),
    "lost_half": lambda body: _messages(body, _cut),
    "lost_model": lambda body: {name: value for name, value in body.items() if name != "model"},
}
"""Parts of a request that a server can lose: images, sounds and videos; the system message; half of a long message; the model's name."""
