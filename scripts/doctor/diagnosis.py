"""What a check found, and what the checks are about."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from cloud.google_api import GoogleApi, GoogleListError, enable_command
from contracts.errors import ScriptError
from stacks.settings import Settings

State = Literal["ok", "missing", "cannot be told"]
_OFF_FOR_THE_PROJECT: Final = "is not enabled for consumer"
"""Service Usage's words for the quotas of an API that is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One line: what was checked, how it is, and the command that mends it."""

    check: str
    state: State
    detail: str
    mend: str = ""
    """A command, or what to change in a settings file. Empty if nothing has to be done."""
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    """What was read, as numbers: `limit` and `needed` of a quota, in the unit that the line names. No `limit`: there is none."""
    required: bool = True
    """Whether `cannot be told` makes the command fail. False for the hub and the registry: the server reaches them from Google's network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What is checked: a project, and the stack for which it has to be ready."""

    project: str
    stack: str | None = None
    settings: Settings | None = None
    """The stack's settings. None: only what every stack needs is checked."""
    google: GoogleApi
    member: str
    """The caller as IAM writes members, for the commands that grant a role."""

    @property
    def is_service_account(self) -> bool:
        """Whether the caller is a service account, which has identity tokens of its own."""
        return self.member.startswith("serviceAccount:")

    def enable(self, *apis: str) -> str:
        """Return the command that enables APIs."""
        return enable_command(self.project, apis)

    def grant(self, role: str) -> str:
        """Return the command that grants the caller a role on the project."""
        return f"gcloud projects add-iam-policy-binding {self.project} --member={self.member} --role={role} --condition=None"

    def refused(self, check: str, api: str, role: str, error: GoogleListError, *, about: str = "") -> Diagnosis:
        """Return the line of a check whose call Google refused: the API is off, or the caller may not read it.

        `about` is the API whose quota was asked for, if that is another one than `api`, which answers.
        """
        mend, detail = "", str(error)
        if error.is_api_off:
            mend, detail = self.enable(api), f"API {api} is off in project {self.project}"
        elif about and _OFF_FOR_THE_PROJECT in detail:
            mend, detail = self.enable(about), f"API {about} is off in project {self.project}"
        elif error.status == 403:  # noqa: PLR2004 - HTTP's own number
            mend = self.grant(role)
        return Diagnosis(check=check, state="cannot be told", detail=detail, mend=mend)


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
            return (Diagnosis(check=self.name, state="cannot be told", detail=str(error), required=self.required),)
