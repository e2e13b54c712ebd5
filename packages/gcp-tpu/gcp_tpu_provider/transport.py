"""Interface to Google: time limits, endpoints and the transport protocol. `http_transport` sends the requests."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import urlsplit

from gcp_tpu_provider.errors import GoogleError, NoAnswerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """Time limits and intervals, in seconds."""

    call_timeout_s: float = 30.0
    """Timeout of one HTTP exchange."""
    retry_budget_s: float = 120.0
    """Retry time of one call while Google is unavailable, or while the API is disabled, because it may have just been enabled."""
    refusal_budget_s: float = 15.0
    """Retry time of a creation after 429, which more often means an exhausted quota than a rate limit."""
    first_contact_s: float = 10.0
    """Retry time of a connection that was never established because the endpoint is wrong or the network is down."""
    retry_first_s: float = 0.3
    retry_most_s: float = 20.0
    poll_first_s: float = 0.3
    poll_share: float = 0.1
    """Later polling intervals as a fraction of the time already waited."""
    poll_most_s: float = 15.0
    appear_s: float = 60.0
    """Maximum time for which an accepted queued resource may stay invisible."""
    late_s: float = 180.0
    """Time for which a deletion or a refresh polls for a queued resource whose creation got no response."""
    delete_s: float = 1800.0
    """Timeout of a deletion."""
    stale_s: float = 30.0
    """Time after a change during which a failure reported before it may still be read."""
    operation_s: float = 600.0
    """Timeout of a node change."""


class TpuTransport(Protocol):
    """Transport interface that the clients need."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        creation: bool = False,
    ) -> dict[str, Any]:
        """Return the JSON response. Raises GoogleError or NoAnswerError."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...

    def now(self) -> datetime:
        """Return Google's time according to its last response, or this machine's time before the first one."""
        ...


OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"
"""gcloud's variable that overrides the endpoint of the Cloud TPU API."""
COMPUTE_OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"
"""gcloud's variable for Compute Engine. Its value ends with the version, compute/v1/."""
COMPUTE_PATH = "compute/"
"""Path prefix of Compute Engine. All other paths belong to the Cloud TPU API."""
OVERRIDE_ANSWER_S = 3.0


_ENDPOINTS = (
    (COMPUTE_PATH, COMPUTE_OVERRIDE, "https://compute.googleapis.com"),
    ("", OVERRIDE, "https://tpu.googleapis.com"),
)
"""Path prefix, variable and Google's endpoint of each API."""


def override_variable(path: str) -> str:
    """Return gcloud's variable for the endpoint of a path's API."""
    return next(variable for prefix, variable, _ in _ENDPOINTS if path.startswith(prefix))


def endpoint(path: str = "") -> str:
    """Return the base URL of a path's API, with a trailing slash. Respects gcloud's override variables."""
    google = next(url for prefix, _, url in _ENDPOINTS if path.startswith(prefix))
    url = os.environ.get(override_variable(path)) or google
    return f"{url.rstrip('/').removesuffix('/compute/v1')}/"


async def unreachable_override(path: str = "") -> str | None:
    """Return an error message if the environment overrides the API's endpoint and it does not respond. Google's endpoint is not checked."""
    variable = override_variable(path)
    override = os.environ.get(variable)
    if not override:
        return None
    parts = urlsplit(override)
    try:
        port = parts.port or ("https" if parts.scheme == "https" else "http")
        async with asyncio.timeout(OVERRIDE_ANSWER_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, ValueError) as error:
        return (
            f"{variable} is {override}, but nothing responds there ({type(error).__name__}). Start that server "
            "or unset the variable to use Google's endpoint."
        )
    writer.close()
    return None


async def find(transport: TpuTransport, path: str) -> dict[str, Any] | None:
    """Return a document, or None if Google has none at this path. Raises GoogleError, or NoAnswerError without the document's name too."""
    try:
        found = await transport.call("GET", path)
    except GoogleError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    if str(found.get("name")).rpartition("/")[2] != path.rpartition("/")[2]:
        raise NoAnswerError(call=f"GET {path}", problem="only one without the name of what was asked for", sent=True)
    return found


async def pages(transport: TpuTransport, path: str, query: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return all pages of a list. Raises GoogleError or NoAnswerError."""
    found, token = list[dict[str, Any]](), ""
    while not found or token:
        found.append(
            await transport.call("GET", path, query={**(query or {}), **({"pageToken": token} if token else {})})
        )
        token = str(found[-1].get("nextPageToken") or "")
    return found
