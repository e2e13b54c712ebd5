"""Checks of the doctor and their results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cloud.caller import GoogleCaller
from cloud.google_api import GoogleListError
from contracts.errors import ScriptError
from stacks.settings import GatewayStack, Settings

State = Literal["ok", "missing", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Result of a check: its name, its state and the command that fixes it."""

    check: str
    state: State
    detail: str
    fix: str = ""
    """A command or a change of a settings file; empty if no fix is needed."""
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values that were read: `limit` and `needed` of a quota, in the unit of `check`. Without `limit`, the quota is unlimited."""
    api: str = ""
    """API that must be on for the result to hold, such as `tpu` for a quota of chips; empty for other checks."""
    required: bool = True
    """True if `unknown` makes the command fail. False for hub and registry, which the server reaches from Google's network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup(GoogleCaller):
    """The project to check and the stack that it must be ready for."""

    stack: str | None = None
    settings: Settings | None = None
    """Settings of the stack. None: check only what every stack needs."""
    gateway: GatewayStack | None = None
    """Settings of a gateway, which has no `settings`."""

    def refused(self, check: str, api: str, role: str, error: GoogleListError, *, about: str = "") -> Diagnosis:
        """Return the result of a check whose call Google rejected; `about` as in `refusal`."""
        detail, fix = self.refusal(api, role, error, about=about)
        return Diagnosis(check=check, state="unknown", detail=detail, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check that yields one or more results and runs concurrently with all others."""

    name: str
    run: Callable[[], Sequence[Diagnosis]]
    required: bool = True

    def lines(self) -> Sequence[Diagnosis]:
        """Run the check. An error becomes an `unknown` result."""
        try:
            return self.run()
        except (ScriptError, GoogleListError) as error:
            return (Diagnosis(check=self.name, state="unknown", detail=str(error), required=self.required),)
