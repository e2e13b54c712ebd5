"""The list of what a stack needs, in its order, and the run of all its checks at once."""

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import google.auth.exceptions
import google.auth.transport.requests
from google.auth.credentials import Credentials
from google.oauth2 import credentials as user

from gemma_serving.cloud import google_api
from gemma_serving.cloud.caller import caller_of, member_of
from gemma_serving.cloud.google_session import NO_CONNECTION, NoConnectionError, RejectedLoginError, login_command
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.parallel import each_within
from gemma_serving.engine.state import StackState
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.cli.transfer import overwrite_line
from gemma_serving.scripts.doctor import capacity, limits, machine, model, passphrase, project, secrets_key, tunnel_role
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok, unknown

LIMIT_S: Final = 30.0
"""Timeout for all checks together, in seconds. A check that has not finished by then is unknown."""
_TOKENS: Final = "https://oauth2.googleapis.com/"


def blockers(checkup: Checkup) -> Sequence[DoctorCheck]:
    """Return the checks of what a stack needs from its project, in the order of every command that shows them."""
    modules = (passphrase, secrets_key, project, tunnel_role, capacity, model, limits)
    return [check for module in modules for check in module.checks(checkup)]


def all_checks(checkup: Checkup) -> Sequence[DoctorCheck]:
    """Return these checks and those of this machine."""
    return [*blockers(checkup), *machine.checks(checkup)]


def run_checks(
    project_id: str,
    state: StackState,
    settings: Settings | None,
    *,
    choose: Callable[[Checkup], Sequence[DoctorCheck]],
    has_ended: bool = False,
) -> Sequence[Diagnosis]:
    """Return the answers to the chosen checks, in their order, the login first. `has_ended`: Google reports that the server in the state no longer exists."""
    try:
        credentials = google_api.credentials()
    except CommandRefusedError:
        return [missing(google_api.NO_CREDENTIALS, login_command(), check="credentials")]
    login = replace(_credentials(credentials), check="credentials")
    if login.word != "ok":
        return [login]
    caller = caller_of(project_id, credentials)
    checkup = Checkup(
        project=project_id,
        google=caller.google,
        member=caller.member,
        state=state,
        settings=settings,
        requests=has_ended or not state.has_server,
    )
    usable = DoctorCheck(name="quota project", run=partial(_quota_project, checkup))
    found = _online(concurrently([*choose(checkup), usable]))
    refused = [line for line in found if line.check in {usable.name, login.check} and line.is_absent]
    if any(line.check == login.check for line in refused):
        return refused
    if not refused:
        return [login, *found]
    if isinstance(credentials, user.Credentials):
        return [login, *refused]
    # Without the header, calls of a service account use its own project's quota, so the other checks can still run.
    unbilled = replace(checkup, google=google_api.connect(given=credentials))
    return [login, *refused, *concurrently(choose(unbilled))]


def concurrently(
    checks: Sequence[DoctorCheck], limit_s: float = LIMIT_S, *, clock: Callable[[], float] = time.monotonic
) -> Sequence[Diagnosis]:
    """Run each check in its own thread and return the results in order. The command does not wait for threads that time out."""
    done = itertools.count(1)

    def lines(check: DoctorCheck) -> Sequence[Diagnosis]:
        found = check.lines()
        _progress(f"doctor: {next(done)} of {len(checks)} checks finished")
        return found

    _progress(f"doctor: running {len(checks)} checks")
    found = each_within([partial(lines, check) for check in checks], workers=len(checks), limit_s=limit_s, clock=clock)
    _progress("")
    return [line for check, (lines, error) in zip(checks, found, strict=True) for line in lines or _late(check, error)]


def _progress(text: str) -> None:
    """Show one line of progress on a terminal; an empty text clears it."""
    if sys.stderr.isatty():
        overwrite_line(text)


def _online(lines: Sequence[Diagnosis]) -> Sequence[Diagnosis]:
    """Return the results. Without a connection to Google, a login that gcloud cannot renew is unknown."""
    lost = next((line.detail for line in lines if line.detail.startswith(NO_CONNECTION)), "")
    is_login = [bool(lost) and line.check == machine.LOGIN and line.is_absent for line in lines]
    return [unknown(lost, check=line.check) if is_lost else line for line, is_lost in zip(lines, is_login, strict=True)]


def _late(check: DoctorCheck, error: BaseException | None) -> Sequence[Diagnosis]:
    """Return the result of a check that failed or timed out; empty if it succeeded without a result."""
    if error is None:
        return ()
    reason = str(error) if isinstance(error, TimeoutError) else f"the check failed: {type(error).__name__}: {error}"
    return (unknown(reason, check=check.name, required=check.required),)


def _credentials(credentials: Credentials) -> Diagnosis:
    """Return whether the credentials are valid."""
    is_user, has_login = isinstance(credentials, user.Credentials), bool(getattr(credentials, "refresh_token", None))
    try:
        if has_login or not is_user:
            credentials.refresh(google.auth.transport.requests.Request())  # pyright: ignore[reportUnknownMemberType] - the library is untyped
    except google.auth.exceptions.RefreshError as error:
        return missing(RejectedLoginError(error).problem, login_command())
    except google.auth.exceptions.TransportError as error:
        return unknown(str(NoConnectionError(_TOKENS, error)))
    if not is_user:
        return ok(member_of(credentials))
    return ok("user login" if has_login else "access token")


def _quota_project(checkup: Checkup) -> Sequence[Diagnosis]:
    """Return a line if Google rejects every call of this product: the login, or the project as quota project.

    Testing permissions requires no permission, so a denial can only be about the quota project.
    """
    body = {"permissions": ["serviceusage.services.use"]}
    try:
        checkup.google.post("cloudresourcemanager", f"v1/projects/{checkup.project}:testIamPermissions", body)
    except google_api.GoogleListError as error:
        if error.is_quota_project_denied:
            return [missing(str(error), checkup.grant("roles/serviceusage.serviceUsageConsumer"))]
    except RejectedLoginError as error:
        return [missing(error.problem, login_command(), check="credentials")]
    except ScriptError:
        pass  # the other checks report it, each for its API
    return []
