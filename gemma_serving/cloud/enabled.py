"""Enabled APIs of a project, from Service Usage, and the wait for one that was just enabled."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, connect, enable_command, lookup
from gemma_serving.cloud.google_session import RejectedLoginError
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.three_answers import Answer, Unknown

SERVICE_USAGE = "serviceusage"
START_LIMIT_S: Final = 300.0
"""Maximum wait for an API that is enabled but responds as if it were off; Google documents "a few minutes"."""
PAUSE_S: Final = 10.0


def read_enabled_apis(google: GoogleApi, project: str, apis: Iterable[str]) -> frozenset[str]:
    """Return the names of the enabled ones of these APIs. Raises GoogleListError and ScriptError."""
    parent = f"projects/{project}"
    query = urlencode([("names", f"{parent}/services/{api}.googleapis.com") for api in apis])
    answer = google.get(SERVICE_USAGE, f"v1/{parent}/services:batchGet?{query}")
    services = map(as_mapping, as_sequence(answer.get("services")))
    on = (str(service.get("name")) for service in services if service.get("state") == "ENABLED")
    return frozenset(name.rpartition("/")[2].removesuffix(".googleapis.com") for name in on)


def require_apis(project: str, apis: Sequence[str], *, say: Callable[[str], None]) -> None:
    """Raise CommandRefusedError, with the command that enables them, if APIs that a stack uses are off or Google rejects the login.

    If Service Usage rejects the call, that is unknown, reported with `say`, and blocks nothing.
    """
    try:
        enabled = read_enabled_apis(connect(project), project, apis)
    except (CommandRefusedError, RejectedLoginError) as error:
        raise CommandRefusedError(str(error)) from None
    except (GoogleListError, ScriptError) as error:
        command = enable_command(project, [SERVICE_USAGE, *apis])
        say(
            f"Could not check which APIs are enabled in project {project}: {str(error).rstrip('.')}. "
            f"If one is off, run `{command}`."
        )
        return
    off = [api for api in apis if api not in enabled]
    if off:
        raise CommandRefusedError(
            f"Project {project} lacks {len(off)} APIs that this stack uses. "
            f"Run `{enable_command(project, off)}`, then the same command again."
        )


def await_api(
    google: GoogleApi, api: str, path: str, *, say: Callable[[str], None], clock: WaitClock | None = None
) -> Answer[Mapping[str, object]]:
    """Return the answer to a read of `path`. Raises ScriptError if the API is still off after START_LIMIT_S."""
    clock = clock or WaitClock()
    end_s = clock.now_s() + START_LIMIT_S
    is_said = False
    while isinstance(answer := lookup(google, api, path), Unknown) and answer.cause == "api off":
        if clock.now_s() >= end_s:
            raise ScriptError(
                f"{answer.why}. It still was after {START_LIMIT_S:.0f} s. Run the same command again later."
            )
        if not is_said:
            say(f"waiting up to {START_LIMIT_S:.0f} s for {api}.googleapis.com (recently enabled)")
        is_said = True
        clock.sleep(PAUSE_S)
    return answer
