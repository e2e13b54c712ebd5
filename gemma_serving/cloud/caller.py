"""The caller of Google APIs for a project, and the fix for a rejected call."""

from dataclasses import dataclass
from typing import Final

from google.auth.credentials import Credentials

from gcp_tpu_provider.refusals import OTHER_API_OFF
from gemma_serving.cloud import google_api
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, enable_command

USER: Final = '"user:$(gcloud config get account)"'
"""A user as an IAM member in a command: only gcloud knows the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleCaller:
    """A project, and the user's session with Google."""

    project: str
    google: GoogleApi
    member: str
    """The caller as an IAM member, for commands that grant a role."""

    @property
    def is_service_account(self) -> bool:
        """True if the caller is a service account, which has its own identity tokens."""
        return self.member.startswith("serviceAccount:")

    def enable(self, *apis: str) -> str:
        """Return the command that enables APIs."""
        return enable_command(self.project, apis)

    def grant(self, role: str) -> str:
        """Return the command that grants the caller a role on the project."""
        change = f"gcloud projects add-iam-policy-binding {self.project}"
        return f"{change} --member={self.member} --role={role} --condition=None"

    def refusal(self, api: str, role: str, error: GoogleListError, *, about: str = "") -> tuple[str, str]:
        """Return why Google rejected a call, and the command that fixes it. `about`: the API whose quota `api` was requested for."""
        if error.is_api_off:
            return f"API {api} is off in project {self.project}", self.enable(api)
        if about and error.meaning == OTHER_API_OFF:
            return f"API {about} is off in project {self.project}", self.enable(about)
        return (str(error), self.grant(role)) if error.is_denied else (error.said(self.project), "")


def caller_of(project: str, given: Credentials | None = None) -> GoogleCaller:
    """Return a project with the user's credentials, or those `given`. Raises CommandRefusedError without credentials."""
    credentials = given or google_api.credentials()
    google = google_api.connect(project, given=credentials)
    return GoogleCaller(project=project, google=google, member=member_of(credentials))


def member_of(credentials: Credentials) -> str:
    """Return the caller as an IAM member; only gcloud knows a user's address."""
    email: object = getattr(credentials, "service_account_email", None)
    return f"serviceAccount:{email}" if email else USER
