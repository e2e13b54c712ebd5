"""Server measured by a sweep."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from loadtest.client.openai import Headers
from loadtest.client.urls import server_root
from loadtest.errors import SweepError

API_KEY_VARIABLE: Final = "GEMMA_API_KEY"
"""Not OPENAI_API_KEY, which is often a key of OpenAI: any server at `--url` would get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server that is ready for requests."""

    base_url: str
    """`http://HOST[:PORT]`, `https://HOST`, or `http+unix://PATH` (`loadtest.client.urls`)."""
    headers: Headers = field(default=dict[str, str], repr=False)
    """Returns the headers of the next request. It may block, and is never called in the event loop."""
    not_reached: Callable[[Exception], str] = field(default=lambda _error: "", repr=False)
    """Returns a sentence if an error is a connection problem rather than a server problem, otherwise an empty string."""


def given_endpoint(url: str) -> Endpoint:
    """Return the server at `--url`, with the API key of the environment if set. Raises SweepError if the address is not usable."""
    try:
        root = server_root(url)
    except ValueError as error:
        raise SweepError(str(error)) from None
    key = os.environ.get(API_KEY_VARIABLE)
    return Endpoint(base_url=root, headers=lambda: {"Authorization": f"Bearer {key}"} if key else {})
