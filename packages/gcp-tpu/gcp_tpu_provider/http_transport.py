"""HTTP to Google: credentials, retries. Tokens and bodies never appear in logs or errors.

The first call loads the packages. A preview of new capacity makes none, so it starts in a third of the time.
"""

# ruff: noqa: PLC0415 - late on purpose

import asyncio
import http.client
import json
import os
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from gcp_tpu_provider.errors import GoogleError, NoAnswerError, TpuProviderError
from gcp_tpu_provider.refusals import about_the_project, is_temporary
from gcp_tpu_provider.transport import COMPUTE_PATH, Pacing, endpoint, override_variable

if TYPE_CHECKING:
    import aiohttp
    import tenacity

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
RETRIED = frozenset({429, 500, 502, 503, 504})


@dataclass
class Credentials:
    """Token from GOOGLE_OAUTH_ACCESS_TOKEN if set, otherwise Application Default Credentials, refreshed when they expire."""

    _adc: Any = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def headers(self, project: str) -> dict[str, str]:
        """Return the headers of a call, with the project as quota project. Raises TpuProviderError without credentials."""
        # For a login without a quota project, or with another one, Google rejects the call or counts it for that project.
        counted = {"x-goog-user-project": project} if project else {}
        given = os.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN")
        if given:
            return {"Authorization": f"Bearer {given}", **counted}
        async with self._lock:
            return {"Authorization": f"Bearer {await asyncio.to_thread(self._adc_token)}", **counted}

    def _adc_token(self) -> str:
        import google.auth
        import google.auth.exceptions
        import google.auth.transport.requests

        try:
            if self._adc is None:
                self._adc, _ = cast("tuple[Any, Any]", google.auth.default(scopes=[SCOPE]))  # pyright: ignore[reportUnknownMemberType] - google-auth leaves `default` partly untyped
            if not self._adc.valid:
                self._adc.refresh(google.auth.transport.requests.Request())
        except google.auth.exceptions.GoogleAuthError as error:
            text = str(error).splitlines()[0].rstrip(".")
            raise TpuProviderError(
                f"No usable Google credentials ({text}). Run `gcloud auth application-default login` "
                "or set GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_OAUTH_ACCESS_TOKEN."
            ) from None
        return str(self._adc.token)


@dataclass
class HttpTpuTransport:
    """Transport over HTTP."""

    pacing: Pacing = field(default_factory=Pacing)
    credentials: Credentials = field(default_factory=Credentials)
    _session: "aiohttp.ClientSession | None" = None
    _reached: bool = False
    _ahead: timedelta = timedelta()
    """Offset of Google's clock from this machine's clock."""

    def now(self) -> datetime:
        """Return Google's time according to its last response, or this machine's time before the first one."""
        return datetime.now(UTC) + self._ahead

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        creation: bool = False,
    ) -> dict[str, Any]:
        """Send one request. Within the budget, retry 429, 500, 502, 503, 504 and broken connections with jitter."""
        import aiohttp
        import tenacity

        sent = False

        def give_up(state: tenacity.RetryCallState) -> bool:
            problem = state.outcome.exception() if state.outcome else None
            budget_s = self._budget_s(problem, creation=creation)
            return (state.seconds_since_start or 0.0) + _upcoming_s(state, self.pacing) > budget_s

        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_passes_by_itself),
            wait=lambda state: _upcoming_s(state, self.pacing),
            stop=give_up,
            reraise=True,
        ):
            with attempt:
                try:
                    return await self._once(method, path, query or {}, body)
                except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
                    raise NoAnswerError(f"{method} {path}", f"{_problem(error)}{_where(path)}", sent) from None
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    sent = True
                    raise NoAnswerError(f"{method} {path}", _problem(error), sent) from None
                except GoogleError as error:
                    error.may_have_acted = sent
                    sent = sent or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _set_clock(self, date: str | None) -> None:
        """Read the time from the header Date, which every response of an HTTP server with a clock has (RFC 9110, 6.6.1)."""
        with suppress(ValueError, TypeError):
            self._ahead = parsedate_to_datetime(date or "").astimezone(UTC) - datetime.now(UTC)

    def _budget_s(self, problem: BaseException | None, *, creation: bool) -> float:
        if isinstance(problem, NoAnswerError) and not self._reached:
            return self.pacing.first_contact_s
        refused = isinstance(problem, GoogleError) and problem.status == HTTPStatus.TOO_MANY_REQUESTS
        return self.pacing.refusal_budget_s if creation and refused else self.pacing.retry_budget_s

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        import aiohttp

        project = _project(path)
        headers = await self.credentials.headers(project)
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=True)
        limit = aiohttp.ClientTimeout(total=self.pacing.call_timeout_s)
        url = endpoint(path) + path
        async with self._session.request(
            method, url, params=query, json=body, headers=headers, timeout=limit
        ) as answer:
            text = await answer.text()
            self._reached = True
            self._set_clock(answer.headers.get("Date"))
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise google_error(answer.status, text, answer.headers.get("Retry-After"), project)
        return _json_object(text)


def _project(path: str) -> str:
    """Return the project in `v2alpha1/projects/P/...` or `compute/v1/projects/P/...`, or an empty string."""
    parts = path.removeprefix(COMPUTE_PATH).split("/")
    return parts[2] if parts[1:2] == ["projects"] else ""


def _json_object(text: str) -> dict[str, Any]:
    try:
        value: object = json.loads(text or "{}")
    except ValueError as error:
        raise OSError(f"the response is not JSON: {error}") from None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _where(path: str) -> str:
    variable = override_variable(path)
    overridden = os.environ.get(variable)
    return f"; {variable} is {overridden}" if overridden else "; check the network connection"


def _problem(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return str(error) or type(error).__name__


def _passes_by_itself(error: BaseException) -> bool:
    if isinstance(error, GoogleError):
        return error.status in RETRIED or is_temporary(error)
    return isinstance(error, NoAnswerError)


def _upcoming_s(state: "tenacity.RetryCallState", pacing: Pacing) -> float:
    """Return the pause before the next attempt: Google's Retry-After, or exponential backoff with jitter."""
    problem = state.outcome.exception() if state.outcome else None
    if isinstance(problem, GoogleError) and problem.retry_after_s is not None:
        return problem.retry_after_s
    most_s = min(pacing.retry_most_s, pacing.retry_first_s * 2 ** min(state.attempt_number - 1, 30))
    return random.uniform(most_s / 2, most_s)  # noqa: S311 - jitter


def google_error(status: int, text: str, retry_after: str | None = None, project: str = "") -> GoogleError:
    """Return the error in Google's response. A body in another format becomes the message, truncated."""
    code = http.client.responses.get(status, "")
    message = text[:300].strip()
    reason = ""
    metadata: dict[str, str] = {}
    try:
        error = json.loads(text)["error"]
        code = str(error.get("status") or code)
        message = str(error.get("message") or message)
        for detail in error.get("details", []):
            if not reason and detail.get("reason"):
                reason = str(detail["reason"])
                metadata = dict(detail.get("metadata") or {})
        reason = reason or str(next((item.get("reason") or "" for item in error.get("errors") or ()), ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    after_s = float(retry_after) if retry_after and retry_after.replace(".", "", 1).isdigit() else None
    return about_the_project(GoogleError(status, code, message or "no explanation", reason, after_s), project, metadata)
