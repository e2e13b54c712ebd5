"""Who calls Google for a project, and what lets a refused call through: the API that is off, or the role that is missing."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from google.auth.credentials import Credentials

from cloud import google_api
from cloud.google_api import GoogleApi, GoogleListError, enable_command

CALLS: Final = 64
"""Calls to one API at a time: as many as there can be checks, or places."""
_OFF_FOR_THE_PROJECT: Final = "is not enabled for consumer"
"""Service Usage's words for the quotas of an API that is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleCaller:
    """A project, and the user's session with Google."""

    project: str
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

    def refusal(self, api: str, role: str, error: GoogleListError, *, about: str = "") -> tuple[str, str]:
        """Return why Google refused a call, and the command that lets it through: the API is off, or the caller may not read it.

        `about` is the API whose quota was asked for, if that is another one than `api`, which answers. The command is empty if there is none.
        """
        detail = str(error)
        if error.is_api_off:
            return f"API {api} is off in project {self.project}", self.enable(api)
        if about and _OFF_FOR_THE_PROJECT in detail:
            return f"API {about} is off in project {self.project}", self.enable(about)
        return detail, self.grant(role) if error.status == HTTPStatus.FORBIDDEN else ""


def caller_of(project: str, given: Credentials | None = None) -> GoogleCaller:
    """Return a project with the user's credentials, or those `given`. Raises CommandRefusedError if there are none."""
    credentials = given or google_api.credentials()
    google = google_api.connect(project, given=credentials, connections=CALLS)
    return GoogleCaller(project=project, google=google, member=member_of(credentials))


def member_of(credentials: Credentials) -> str:
    """Return the caller as IAM writes members; a person's address is known to gcloud only."""
    email: object = getattr(credentials, "service_account_email", None)
    return f"serviceAccount:{email}" if email else '"user:$(gcloud config get account)"'
