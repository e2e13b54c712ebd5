"""The login of the environment: Application Default Credentials, with the quota project."""

from typing import Any, cast

import google.auth
import google.auth.exceptions
from google.auth.transport.requests import AuthorizedSession, Request

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


class LoginError(Exception):
    """No login was found. The message is one sentence."""


def open_session(project: str) -> AuthorizedSession:
    """Return a session with the login of the environment. Raises LoginError."""
    try:
        # The library is untyped.
        credentials = cast("Any", google.auth).default(scopes=_SCOPES, quota_project_id=project)[0]
        session = AuthorizedSession(credentials)
        credentials.refresh(Request())
    except google.auth.exceptions.GoogleAuthError as error:
        raise LoginError(
            f"No Google login found ({type(error).__name__}). Run `gcloud auth application-default login`."
        ) from None
    return session
