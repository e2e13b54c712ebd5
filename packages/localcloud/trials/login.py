"""The login of the environment: Application Default Credentials, with the project for quota."""

from typing import Any, cast

import google.auth
import google.auth.exceptions
from google.auth.transport.requests import AuthorizedSession, Request

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


class LoginError(Exception):
    """There is no login. The message is one sentence."""


def open_session(project: str) -> AuthorizedSession:
    """Return a session with the login of the environment. Raises LoginError."""
    try:
        # The library has no types.
        credentials = cast("Any", google.auth).default(scopes=_SCOPES, quota_project_id=project)[0]
        session = AuthorizedSession(credentials)
        credentials.refresh(Request())
    except google.auth.exceptions.GoogleAuthError as error:
        raise LoginError(
            f"There is no login ({type(error).__name__}); run `gcloud auth application-default login`."
        ) from None
    return session
