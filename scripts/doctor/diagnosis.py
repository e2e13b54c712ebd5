"""Findings about a project: each is a typed answer with one sentence and one remedy. A check asks for one or more of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from gemma_serving.cloud.caller import GoogleCaller
from gemma_serving.cloud.google_session import GoogleCallError, GoogleListError
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.engine.state import StackState
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.cli.check_result import Values

WORDS: Final[Mapping[type[object], str]] = {Absent: "missing", Unknown: "unknown", Present: "ok"}
"""Words of the report and its JSON, in the order of the report."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether the project has what a stack needs, in one sentence, with one remedy."""

    answer: Answer[str]
    """What exists; absent; or why it is unknown."""
    finding: str = ""
    """The sentence if it is absent."""
    fix: str = ""
    """A command, or a change of a settings file; empty if none is needed or known."""
    values: Values = field(default_factory=dict[str, float | int | str | bool | None])
    """`limit`, `needed` and `used` of a quota in the unit of `check`; without `limit`, it is unlimited."""
    check: str = ""
    """Name; the check's own if empty."""
    quota: tuple[str, Present[float]] | None = None
    """Unit and limit of a quota of Cloud Run that was read; infinite without a limit."""
    api: str = ""
    """API that must be on for the answer to hold, such as `tpu` for a quota of chips; empty for other checks."""
    required: bool = True
    """True if `gemma doctor` fails with `unknown`. False for hub and registry, which the server reaches from Google's network."""
    blocks: bool = True
    """False if the next `up` can do without it, such as one zone of several, or the weights of a server that runs."""
    is_short: bool = False
    """True for a quota of chips that is too low for a request of the next `up`, which can then only wait or fail."""

    @property
    def detail(self) -> str:
        """The sentence."""
        match self.answer:
            case Present(value=text) | Unknown(why=text):
                return text
            case Absent():
                return self.finding

    @property
    def word(self) -> str:
        """The answer in one word."""
        return WORDS[type(self.answer)]

    @property
    def is_told(self) -> bool:
        """True if `up` continues and prints it: a check that failed, or a quota that is too low in a part of the zones."""
        return (self.is_unknown and self.blocks) or self.is_short

    @property
    def is_absent(self) -> bool:
        """True if it does not exist."""
        return isinstance(self.answer, Absent)

    @property
    def is_unknown(self) -> bool:
        """True if it could not be read."""
        return isinstance(self.answer, Unknown)

    def to_json(self) -> dict[str, object]:
        """Return it as one object."""
        values = dict(self.values)
        return {"check": self.check, "detail": self.detail, "fix": self.fix, "values": values, "status": self.word}


def ok(text: str, *, check: str = "") -> Diagnosis:
    """Return that it exists."""
    return Diagnosis(Present(text), check=check)


def missing(text: str, fix: str = "", *, check: str = "", blocks: bool = True) -> Diagnosis:
    """Return that it does not exist, with what adds it."""
    return Diagnosis(Absent(), text, fix, check=check, blocks=blocks)


def unknown(why: str, fix: str = "", *, check: str = "", required: bool = True) -> Diagnosis:
    """Return that it could not be read, with what lets the caller read it."""
    return Diagnosis(Unknown(why), fix=fix, check=check, required=required)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """A check that yields one or more answers and runs concurrently with all others."""

    name: str
    run: Callable[[], Iterable[Diagnosis]]
    required: bool = True
    refusal: Callable[[GoogleListError], tuple[str, str]] = lambda error: (str(error), "")
    """Returns why Google rejected a call of this check, and the command that fixes it."""

    def lines(self) -> Sequence[Diagnosis]:
        """Run the check. An error becomes an `unknown` answer."""
        try:
            found = list(self.run())
        except GoogleListError as error:
            found = [unknown(*self.refusal(error), required=self.required)]
        except (GoogleCallError, ScriptError) as error:
            found = [unknown(str(error), required=self.required)]
        return [replace(line, check=line.check or self.name) for line in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup(GoogleCaller):
    """The project to check and the stack that it must be ready for."""

    state: StackState
    """State of the stack, read once. Without a name: check only the requirements of every stack."""
    settings: Settings | None = None
    requests: bool = False
    """True if the next `up` requests capacity: the stack has no server, or it has ended."""

    @property
    def stack(self) -> str:
        """Name of the stack; empty without one."""
        return self.state.stack

    def calling(self, name: str, api: str, role: str, run: Callable[[], Iterable[Diagnosis]]) -> DoctorCheck:
        """Return a check that calls an API, which a role permits."""
        return DoctorCheck(name=name, run=run, refusal=partial(self.refusal, api, role))
