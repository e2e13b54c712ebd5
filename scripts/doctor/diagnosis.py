"""What a check found, and what the checks are about."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cloud.caller import GoogleCaller
from cloud.google_api import GoogleListError
from contracts.errors import ScriptError
from stacks.settings import Settings

State = Literal["ok", "missing", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One line: what was checked, how it is, and the command that fixes it."""

    check: str
    state: State
    detail: str
    fix: str = ""
    """A command, or what to change in a settings file. Empty if nothing has to be done."""
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    """What was read, as numbers: `limit` and `needed` of a quota, in the unit that the line names. No `limit`: there is none."""
    required: bool = True
    """Whether `unknown` makes the command fail. False for the hub and the registry: the server reaches them from Google's network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup(GoogleCaller):
    """What is checked: a project, and the stack for which it has to be ready."""

    stack: str | None = None
    settings: Settings | None = None
    """The stack's settings. None: only what every stack needs is checked."""

    def refused(self, check: str, api: str, role: str, error: GoogleListError, *, about: str = "") -> Diagnosis:
        """Return the line of a check whose call Google refused; `about` as in `refusal`."""
        detail, fix = self.refusal(api, role, error, about=about)
        return Diagnosis(check=check, state="unknown", detail=detail, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One group of lines that are found together, at the same time as all others."""

    name: str
    run: Callable[[], Sequence[Diagnosis]]
    required: bool = True

    def lines(self) -> Sequence[Diagnosis]:
        """Run the check; a failure of its own becomes a line."""
        try:
            return self.run()
        except (ScriptError, GoogleListError) as error:
            return (Diagnosis(check=self.name, state="unknown", detail=str(error), required=self.required),)
