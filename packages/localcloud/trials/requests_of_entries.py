"""The steps of a ledger entry: parse its `try` text, in the form that docs/authors/assumptions.md explains.

The commands are `api`, `curl`, `gemma`, `pulumi`, `poll`, `sleep` and `tomorrow`.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.ledger.entries import DANGERS, AssumedAnswer, Assumption
from localcloud.trials.resources import created_by

TRY: Final = "TRY"
"""The word for the name of the resource that a request creates."""
FIXTURES: Final = ("SECRET", "BUCKET", "NETWORK", "REPOSITORY", "ACCOUNT")
"""Words for resources that a trial needs. They are created for the trial."""
PAUSE: Final = ("START", "END")
"""Words for the begin and the end of the last `sleep`."""
WORDS: Final = ("PROJECT_NUMBER", "PROJECT", TRY, *PAUSE, *FIXTURES)
_WORD: Final = re.compile(rf"\b(?:{'|'.join(WORDS)})\b|\bX_(?P<count>\d+)\b")
_REQUEST_S: Final = 2


class NotARequestError(ValueError):
    """The `try` of an entry is not a sequence of `api` and `curl` commands. The message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request, with its placeholders not yet replaced. `has_login` False: it is sent without the login (`curl`)."""

    method: str
    url: str
    body: str | None
    headers: Mapping[str, str]
    has_login: bool

    @property
    def words(self) -> frozenset[str]:
        """Return which of WORDS the request contains."""
        return frozenset(found[0] for text in (self.url, self.body or "") for found in _WORD.finditer(text))

    def filled(self, values: Mapping[str, str]) -> "ApiRequest":
        """Return the request with values for its placeholders. X_N becomes N letters x."""
        body = None if self.body is None else _filled(self.body, values)
        return ApiRequest(
            method=self.method,
            url=_filled(self.url, values),
            body=body,
            headers=self.headers,
            has_login=self.has_login,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPause:
    """A pause between two requests, in seconds of the cloud's clock."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCommand:
    """A command of the product, `gemma` or `pulumi`, that runs as a child process in the project's folder."""

    words: tuple[str, ...]

    def filled(self, values: Mapping[str, str]) -> "ChildCommand":
        """Return the command with values for its placeholders."""
        return ChildCommand(words=tuple(_filled(word, values) for word in self.words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """A request or command that is repeated until its response matches a regular expression, for at most `seconds` of the cloud's clock."""

    request: ApiRequest | ChildCommand
    words: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Tomorrow:
    """The end of the evening's part. `try --second-run` runs the steps after it, on another day."""


Step = ApiRequest | TrialPause | ChildCommand | Poll | Tomorrow
_CHILD_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTrial:
    """A sequence of requests that tries an entry. The last step's response is judged; the steps before it must succeed."""

    entry: Assumption
    expected: AssumedAnswer
    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        """Return the approximate duration, with the deletion of the resources whose creation is expected to succeed."""
        return sum(self._seconds(step, is_last=step is self.steps[-1]) for step in self.steps)

    def _seconds(self, step: "Step", *, is_last: bool) -> float:
        if isinstance(step, ChildCommand | Tomorrow):
            return _CHILD_S if isinstance(step, ChildCommand) else 0
        if not isinstance(step, ApiRequest):
            return step.seconds
        made = created_by(step.method, step.url, step.body)
        is_rejected = is_last and self.expected.status >= 400  # noqa: PLR2004 - HTTP's errors
        return _REQUEST_S if made is None or is_rejected else _REQUEST_S + made.kind.seconds

    @property
    def requests(self) -> tuple[ApiRequest, ...]:
        """Return its requests, with its placeholders not yet replaced."""
        asked = (step.request if isinstance(step, Poll) else step for step in self.steps)
        return tuple(step for step in asked if isinstance(step, ApiRequest))

    @property
    def words(self) -> frozenset[str]:
        """Return which of WORDS its requests contain."""
        return frozenset[str]().union(*(request.words for request in self.requests))


def _filled(text: str, values: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return "x" * int(found["count"]) if found["count"] else values[found[0]]

    return _WORD.sub(value, text)


def trial(entry: Assumption) -> LedgerTrial | None:
    """Return the trial of an entry, or None if the entry does not state the expected answer. Raises NotARequestError."""
    if entry.answer is None:
        return None
    try:
        return LedgerTrial(entry=entry, expected=entry.answer, steps=_steps(entry.how_to_try))
    except (NotARequestError, IndexError, StopIteration, ValueError) as error:
        raise NotARequestError(f"Entry '{entry.id}' has an answer, but its request cannot be parsed: {error}") from None


def rank(entry: Assumption) -> tuple[float, float, str]:
    """Return the sort key of an entry: critical entries by cost; then free entries by danger; then by danger per dollar."""
    place = list(DANGERS).index(entry.danger)
    if place == 0:
        return (0, entry.cost_usd, entry.id)
    if entry.cost_usd == 0:
        return (1, place, entry.id)
    return (2, -(2.0**-place) / entry.cost_usd, entry.id)


def _steps(text: str) -> tuple[Step, ...]:
    reader = shlex.shlex(text, posix=True, punctuation_chars=";")
    reader.whitespace_split = True
    reader.commenters = "#"
    commands: list[list[str]] = [[]]
    for word in reader:
        if word == ";":
            commands.append([])
        else:
            commands[-1].append(word)
    return tuple(_step(command) for command in commands)


def _step(command: list[str]) -> Step:
    program, *rest = command or [""]
    if program == "sleep":
        return TrialPause(seconds=float(rest[0]))
    if program == "tomorrow":
        return Tomorrow()
    if program == "poll":
        return Poll(request=_sent(rest[2:]), words=rest[1], seconds=float(rest[0]))
    return _sent(command)


def _sent(command: list[str]) -> ApiRequest | ChildCommand:
    return ChildCommand(words=tuple(command)) if command[:1] in (["gemma"], ["pulumi"]) else _request(command)


def _request(command: list[str]) -> ApiRequest:
    program, *rest = command or [""]
    if program not in {"api", "curl"}:
        raise NotARequestError(f"'{program}' is not `api`, `curl`, `gemma`, `pulumi`, `poll`, `sleep` or `tomorrow`.")
    method = ""
    url = ""
    body = None
    headers: dict[str, str] = {}
    arguments = iter(rest)
    for argument in arguments:
        if argument == "-X":
            method = next(arguments)
        elif argument == "-d":
            body = next(arguments)
        elif argument == "-H":
            name, _, value = next(arguments).partition(":")
            headers[name.strip()] = value.strip()
        elif argument.startswith("https://") and not url:
            url = argument
        else:
            raise NotARequestError(f"'{argument}' is an unknown option or a second URL.")
    if not url:
        raise NotARequestError(f"'{program}' has no URL.")
    return ApiRequest(
        method=method or ("GET" if body is None else "POST"),
        url=url,
        body=body,
        headers=headers,
        has_login=program == "api",
    )
