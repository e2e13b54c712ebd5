"""Distinguish server errors from connection errors."""

from http import HTTPStatus
from typing import Final

from gemma_serving.scripts.stack.access import API_KEY_VARIABLE, AccessError, ServerAccess
from loadtest.client.openai import NotConnectedError
from loadtest.endpoint import Endpoint

DENIED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
"""Status of a response to a caller whose credentials the server rejects."""


def explain_unreachable(access: ServerAccess, error: Exception) -> str:
    """Return one sentence on why the server could not be reached; empty if the error is the server's.

    Through an open tunnel, a reset connection is a server error, because nothing listens on the node.
    """
    if isinstance(error, AccessError):
        return str(error)
    if not access.is_open():
        return f"the tunnel closed: {error}"
    if isinstance(error, NotConnectedError) and access.behind_front_end:
        return f"cannot connect to Google's front end: {error} Check this computer's network, DNS and proxy."
    return ""


def endpoint_of(access: ServerAccess) -> Endpoint:
    """Return the server as an endpoint for the load tester."""
    return Endpoint(
        base_url=access.base_url,
        headers=access.headers,
        not_reached=lambda error: explain_unreachable(access, error),
    )


def explain_denial(status: int, message: str) -> str:
    """Return one sentence about rejected credentials (401 or 403), with the fix."""
    return (
        f"The server returned {status}: {message.rstrip('.') or 'no reason given'}. If it needs an API key, set {API_KEY_VARIABLE}. "
        "On Cloud Run, add your account to `cloudRun.invokers` (roles/run.invoker). A new grant usually takes two minutes to take effect, seven at most."
    )
