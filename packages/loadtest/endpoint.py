"""Server measured by a sweep."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from loadtest.client.given_url import server_root
from loadtest.client.metrics import METRICS_PATHS
from loadtest.client.openai import Headers
from loadtest.errors import SweepError

API_KEY_VARIABLE: Final = "OPENAI_API_KEY"


def _no_headers() -> Mapping[str, str]:
    return {}


def _reached(_error: Exception) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server that is ready for requests."""

    base_url: str
    """`http://HOST[:PORT]`, `https://HOST`, or `http+unix://PATH` (`loadtest.client.unix_url`)."""
    headers: Headers = field(default=_no_headers, repr=False)
    """Returns the headers of the next request. It may block, and is never called in the event loop."""
    not_reached: Callable[[Exception], str] = field(default=_reached, repr=False)
    """Returns a sentence if an error is a connection problem rather than a server problem, otherwise an empty string."""
    metrics_paths: Sequence[str] = METRICS_PATHS
    """Paths of its metrics, which are added up: one per server behind a gateway."""


def given_endpoint(url: str) -> Endpoint:
    """Return the server at `--url`, with the API key of the environment if set. Raises SweepError if the address is not usable."""
    try:
        root = server_root(url)
    except ValueError as error:
        raise SweepError(str(error)) from None
    key = os.environ.get(API_KEY_VARIABLE)
    return Endpoint(base_url=root, headers=lambda: {"Authorization": f"Bearer {key}"} if key else {})
