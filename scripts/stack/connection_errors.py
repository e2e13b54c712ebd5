"""Distinguish server errors from connection errors."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, Literal

from gemma_serving.scripts.stack.access import API_KEY_VARIABLE, AccessError, ServerAccess
from loadtest.client.json_values import as_mapping
from loadtest.client.openai import NotConnectedError, ServerAnswer
from loadtest.endpoint import Endpoint

DENIED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
"""Status of a response to a caller whose credentials the server rejects."""
Sender = Literal["Cloud Run", "`gemma connect`", "Google", "The server", "The address"]
PROXY: Final = "connect"
"""Type of the errors of `gemma connect`."""
_INVOKER: Final = "Add your account to `cloudRun.invokers` (roles/run.invoker). A new grant usually takes two minutes to take effect, seven at most."
_FIXES: Final[Mapping[tuple[Sender, int], str]] = {
    ("Cloud Run", 401): _INVOKER,
    ("Cloud Run", 403): _INVOKER,
    ("Cloud Run", 404): "No such service exists, or `cloudRun.ingress` does not allow this network.",
    ("The server", 401): f"Set {API_KEY_VARIABLE} to the server's API key.",
    ("The server", 404): "The API begins with /v1: end the base URL with it.",
}


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


def sender_of(answer: ServerAnswer) -> Sender:
    """Return who wrote a response, as far as its body proves it.

    Cloud Run's own is a page in HTML with `Server: Google Frontend`, a header that the server's JSON through Cloud Run has too. Google's APIs
    write an error with its status (google.rpc.Status).
    """
    if isinstance(answer.body, str):
        is_page = answer.headers.get("content-type", "").startswith("text/html")
        return "Cloud Run" if is_page and answer.headers.get("server") == "Google Frontend" else "The address"
    error = as_mapping(as_mapping(answer.body).get("error"))
    return "`gemma connect`" if error.get("type") == PROXY else "Google" if "status" in error else "The server"


def explain_refusal(answer: ServerAnswer) -> str:
    """Return one sentence about a response other than 200, and the fix if its sender proves one."""
    sender = sender_of(answer)
    said = "its own page" if sender == "Cloud Run" else answer.message.rstrip(".") or "no reason given"
    return f"{sender} returned {answer.status}: {said}. {_FIXES.get((sender, answer.status), '')}".rstrip()
