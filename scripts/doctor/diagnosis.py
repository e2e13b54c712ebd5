"""Checks of the doctor and their results. A check yields its results; `Check.lines` names it and explains Google's refusals."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gemma_serving.cloud.caller import GoogleCaller
from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.engine.state import StackState
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.cli.check_result import CheckResult, State

WORDS: Final[Mapping[State, str]] = {"failed": "missing", "unknown": "unknown", "passed": "ok"}
"""Words of the report and its JSON, in the order of the report."""


@dataclass(frozen=True, slots=True)
class Diagnosis(CheckResult):
    """Result of a check. `values` has `limit`, `needed` and `used` of a quota in the unit of `check`; without `limit`, it is unlimited."""

    check: str = ""
    """Name; the check's own if empty."""
    api: str = ""
    """API that must be on for the result to hold, such as `tpu` for a quota of chips; empty for other checks."""
    required: bool = True
    """True if the command fails with `unknown`. False for hub and registry, which the server reaches from Google's network, and for limits."""
    has_alternative: bool = False
    """True for a quota that fails while another form of capacity can be requested in the same place."""


ok: Final = partial(Diagnosis, "passed")
missing: Final = partial(Diagnosis, "failed")
unknown: Final = partial(Diagnosis, "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """A check that yields one or more results and runs concurrently with all others."""

    name: str
    run: Callable[[], Iterable[Diagnosis]]
    required: bool = True
    refusal: Callable[[GoogleListError], tuple[str, str]] = lambda error: (str(error), "")
    """Returns why Google rejected a call of this check, and the command that fixes it."""

    def lines(self) -> Sequence[Diagnosis]:
        """Run the check. An error becomes an `unknown` result."""
        try:
            found = list(self.run())
        except GoogleListError as error:
            found = [unknown(*self.refusal(error), required=self.required)]
        except ScriptError as error:
            found = [unknown(str(error), required=self.required)]
        return [replace(line, check=line.check or self.name) for line in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup(GoogleCaller):
    """The project to check and the stack that it must be ready for."""

    state: StackState
    """State of the stack, read once. Without a name: check only the requirements of every stack."""
    settings: Settings | None = None

    @property
    def stack(self) -> str:
        """Name of the stack; empty without one."""
        return self.state.stack

    def calling(
        self, name: str, api: str, role: str, run: Callable[[], Iterable[Diagnosis]], about: str = ""
    ) -> DoctorCheck:
        """Return a check that calls an API, which a role permits; `about` as in `refusal`."""
        return DoctorCheck(name=name, run=run, refusal=partial(self.refusal, api, role, about=about))
