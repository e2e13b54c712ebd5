"""Run the checks, all at the same time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import google.auth.exceptions
import google.auth.transport.requests
from google.auth.credentials import Credentials
from google.oauth2 import credentials as user

from cloud import google_api
from cloud.caller import CALLS, caller_of, member_of
from contracts.errors import CommandRefusedError, ScriptError
from contracts.parallel import each_within
from scripts.doctor import capacity, machine, model, project, secrets_key, tunnel_role
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis
from stacks.settings import Settings

LIMIT_S: Final = 30.0
"""Longest wait for all checks together. One that is not done by then is unknown."""
QUOTA_PROJECT: Final = "quota project"
USE_PROJECT: Final = "serviceusage.services.use"
CONSUMER: Final = "roles/serviceusage.serviceUsageConsumer"
NOT_USABLE: Final = "USER_PROJECT_DENIED"
"""Google's reason for a project that the caller may not use for quota."""


def examine(project_id: str, stack: str | None, settings: Settings | None) -> Sequence[Diagnosis]:
    """Return the lines of all checks, in a fixed order."""
    try:
        credentials = google_api.credentials()
    except CommandRefusedError as error:
        fix = "gcloud auth application-default login"
        line = Diagnosis(check="credentials", state="missing", detail=str(error), fix=fix)
        return (line,)
    lines = _credentials(credentials)
    if any(line.state != "ok" and line.check == "credentials" for line in lines):
        return lines
    caller = caller_of(project_id, credentials)
    checkup = Checkup(project=project_id, google=caller.google, member=caller.member, stack=stack, settings=settings)
    found = concurrently([*_checks(checkup), Check(name=QUOTA_PROJECT, run=lambda: _quota_project(checkup))])
    refused = [line for line in found if line.check == QUOTA_PROJECT and line.state == "missing"]
    if not refused:
        return [*lines, *found]
    if isinstance(credentials, user.Credentials):
        return [*lines, *refused]
    # A service account's calls count for its own project without the header, so that everything that is missing can be said at once.
    own = replace(checkup, google=google_api.connect(given=credentials, connections=CALLS))
    return [*lines, *refused, *concurrently(_checks(own))]


def _checks(checkup: Checkup) -> Sequence[Check]:
    rooms = (project, tunnel_role, capacity, machine, secrets_key, model)
    return [check for room in rooms for check in room.checks(checkup)]


def concurrently(checks: Sequence[Check], limit_s: float = LIMIT_S) -> Sequence[Diagnosis]:
    """Run each check in a thread of its own, which the command's end does not wait for, and return their lines in order."""
    found = each_within([check.lines for check in checks], workers=len(checks), limit_s=limit_s)
    return [
        line for check, (lines, error) in zip(checks, found, strict=True) for line in lines or _unsaid(check, error)
    ]


def _unsaid(check: Check, error: BaseException | None) -> Sequence[Diagnosis]:
    """Return the line of a check without an answer; nothing for one that had nothing to say."""
    if error is None:
        return ()
    reason = str(error) if isinstance(error, TimeoutError) else f"the check failed: {type(error).__name__}: {error}"
    return (Diagnosis(check=check.name, state="unknown", detail=reason, required=check.required),)


def _credentials(credentials: Credentials) -> Sequence[Diagnosis]:
    """Return whether the credentials are valid."""
    login = "gcloud auth application-default login"
    try:
        if getattr(credentials, "refresh_token", None) or not isinstance(credentials, user.Credentials):
            credentials.refresh(google.auth.transport.requests.Request())  # pyright: ignore[reportUnknownMemberType] - the library is untyped
    except google.auth.exceptions.RefreshError as error:
        detail = f"Google refuses them: {str(error.args[0]).splitlines()[0]}"
        return (Diagnosis(check="credentials", state="missing", detail=detail, fix=login),)
    except google.auth.exceptions.TransportError as error:
        detail = f"Google cannot be reached: {type(error).__name__}"
        return (Diagnosis(check="credentials", state="unknown", detail=detail),)
    person = isinstance(credentials, user.Credentials) and bool(getattr(credentials, "refresh_token", None))
    kind = "an access token" if isinstance(credentials, user.Credentials) else member_of(credentials)
    return (Diagnosis(check="credentials", state="ok", detail="a person's login" if person else kind),)


def _quota_project(checkup: Checkup) -> Sequence[Diagnosis]:
    """Return a line if calls may not count for the project: Google refuses every call of this product until they may.

    Testing permissions needs none, so that a refusal of it for want of one is about the project for quota.
    """
    try:
        checkup.google.post(
            "cloudresourcemanager", f"v1/projects/{checkup.project}:testIamPermissions", {"permissions": [USE_PROJECT]}
        )
    except google_api.GoogleListError as error:
        if error.reason == NOT_USABLE:
            fix = checkup.grant(CONSUMER)
            return (Diagnosis(check=QUOTA_PROJECT, state="missing", detail=str(error), fix=fix),)
    except ScriptError:
        pass  # the other checks say so, each for its API
    return ()
