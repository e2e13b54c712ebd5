"""Run all checks concurrently."""

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
from scripts.doctor import capacity, machine, model, project, repository, secrets_key, tunnel_role
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis
from stacks.settings import GatewayStack, Settings

LIMIT_S: Final = 30.0
"""Timeout for all checks together, in seconds. A check that has not finished by then is unknown."""
QUOTA_PROJECT: Final = "quota project"
USE_PROJECT: Final = "serviceusage.services.use"
CONSUMER: Final = "roles/serviceusage.serviceUsageConsumer"
NOT_USABLE: Final = "USER_PROJECT_DENIED"
"""Google's error reason for a quota project that the caller does not have permission to use."""


def examine(
    project_id: str, stack: str | None, settings: Settings | None, gateway: GatewayStack | None = None
) -> Sequence[Diagnosis]:
    """Return the results of all checks, in a fixed order."""
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
    checkup = Checkup(
        project=project_id,
        google=caller.google,
        member=caller.member,
        stack=stack,
        settings=settings,
        gateway=gateway,
    )
    found = concurrently([*_checks(checkup), Check(name=QUOTA_PROJECT, run=lambda: _quota_project(checkup))])
    refused = [line for line in found if line.check == QUOTA_PROJECT and line.state == "missing"]
    if not refused:
        return [*lines, *_of_enabled_apis(checkup, found)]
    if isinstance(credentials, user.Credentials):
        return [*lines, *refused]
    # Without the header, calls of a service account use its own project's quota, so the other checks can still run.
    own = replace(checkup, google=google_api.connect(given=credentials, connections=CALLS))
    return [*lines, *refused, *_of_enabled_apis(own, concurrently(_checks(own)))]


def _checks(checkup: Checkup) -> Sequence[Check]:
    modules = (project, tunnel_role, capacity, machine, repository, secrets_key, model)
    return [check for module in modules for check in module.checks(checkup)]


def concurrently(checks: Sequence[Check], limit_s: float = LIMIT_S) -> Sequence[Diagnosis]:
    """Run each check in its own thread and return the results in order. The command does not wait for threads that time out."""
    found = each_within([check.lines for check in checks], workers=len(checks), limit_s=limit_s)
    return [
        line for check, (lines, error) in zip(checks, found, strict=True) for line in lines or _unfinished(check, error)
    ]


def _of_enabled_apis(checkup: Checkup, lines: Sequence[Diagnosis]) -> Sequence[Diagnosis]:
    """Return the results, each quota of an API that is off as unknown: its limit is only known after the API is on."""
    off = {
        line.check.removeprefix("API ") for line in lines if line.check.startswith("API ") and line.state == "missing"
    }
    return [
        Diagnosis(
            check=line.check,
            state="unknown",
            detail=f"API {line.api} is off in project {checkup.project}",
            fix=checkup.enable(line.api),
        )
        if line.api in off
        else line
        for line in lines
    ]


def _unfinished(check: Check, error: BaseException | None) -> Sequence[Diagnosis]:
    """Return the result of a check that failed or timed out; empty if it succeeded without a result."""
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
        detail = f"Google rejected them: {str(error.args[0]).splitlines()[0]}"
        return (Diagnosis(check="credentials", state="missing", detail=detail, fix=login),)
    except google.auth.exceptions.TransportError as error:
        detail = f"cannot reach Google: {type(error).__name__}"
        return (Diagnosis(check="credentials", state="unknown", detail=detail),)
    is_user = isinstance(credentials, user.Credentials) and bool(getattr(credentials, "refresh_token", None))
    kind = "access token" if isinstance(credentials, user.Credentials) else member_of(credentials)
    return (Diagnosis(check="credentials", state="ok", detail="user login" if is_user else kind),)


def _quota_project(checkup: Checkup) -> Sequence[Diagnosis]:
    """Return a line if the caller cannot use the project as quota project. Google then rejects every call of this product.

    Testing permissions requires no permission, so a denial can only be about the quota project.
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
        pass  # the other checks report it, each for its API
    return ()
