"""How Google is called: time limits, endpoints, and what the clients need of a transport. `http_transport` makes the calls."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """Time limits and intervals, in seconds."""

    call_timeout_s: float = 30.0
    """One HTTP exchange."""
    retry_budget_s: float = 120.0
    """How long to retry one call while Google is unavailable, or while the API is disabled: it may have been enabled a moment ago."""
    refusal_budget_s: float = 15.0
    """How long to retry a creation after 429, which is more often a used-up quota than a rate limit."""
    first_contact_s: float = 10.0
    """Total time to retry a connection that was never established: the endpoint is wrong or the network is down."""
    retry_first_s: float = 0.3
    retry_most_s: float = 20.0
    poll_first_s: float = 0.3
    poll_share: float = 0.1
    """Later polling intervals are this fraction of the time already waited."""
    poll_most_s: float = 15.0
    appear_s: float = 60.0
    """How long an accepted queued resource may stay invisible."""
    late_s: float = 180.0
    """How long a deletion or a refresh looks for a queued resource whose creation got no answer."""
    delete_s: float = 1800.0
    """How long a deletion may take."""
    stale_s: float = 30.0
    """How long a failure that the machine reported before a change may still be read after it."""
    drain_s: float = 120.0
    """How long a machine that is to be deleted may take to end its running requests."""
    operation_s: float = 600.0
    """How long a change of a node may take."""


class TpuTransport(Protocol):
    """What the client needs of a transport."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        creation: bool = False,
    ) -> dict[str, Any]:
        """Return the JSON answer. Raises GoogleError or NoAnswerError."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...

    def now(self) -> datetime:
        """Return Google's time by its last answer; this machine's before the first one."""
        ...


OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"
"""gcloud's variable for another endpoint of the Cloud TPU API."""
COMPUTE_OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"
"""The same of Compute Engine. Its value ends in the version, compute/v1/, as gcloud has it."""
COMPUTE_PATH = "compute/"
"""How the paths of Compute Engine begin."""
USAGE_OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SERVICEUSAGE"
USAGE_PATH = "v1beta1/"
"""How the paths of Service Usage begin; all others are those of the Cloud TPU API."""
OVERRIDE_ANSWER_S = 3.0


def override_variable(path: str) -> str:
    """Return gcloud's variable for the endpoint of the API that a path belongs to."""
    if path.startswith(COMPUTE_PATH):
        return COMPUTE_OVERRIDE
    return USAGE_OVERRIDE if path.startswith(USAGE_PATH) else OVERRIDE


def endpoint(path: str = "") -> str:
    """Return the base URL of the API that a path belongs to, with a slash at its end. Honours gcloud's override variables."""
    override = os.environ.get(override_variable(path))
    if path.startswith(COMPUTE_PATH):
        base = (override or "https://compute.googleapis.com").rstrip("/")
        return base.removesuffix("/compute/v1") + "/"
    google = "https://serviceusage.googleapis.com" if path.startswith(USAGE_PATH) else "https://tpu.googleapis.com"
    return (override or google).rstrip("/") + "/"


async def unreachable_override(path: str = "") -> str | None:
    """Return an error message if the environment overrides the API's endpoint and nothing listens there. Google's is not checked."""
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
            f"{variable} is {override}, and nothing answers there ({type(error).__name__}). Start that server, "
            "or unset the variable to use Google's endpoint."
        )
    writer.close()
    return None
