"""Whether an error of a request is about the server, or about the way to it."""

from loadtest.client.openai import NotConnectedError
from loadtest.endpoint import Endpoint
from scripts.cli.access import AccessError, ServerAccess


def not_reached(access: ServerAccess, error: Exception) -> str:
    """Return why an error says nothing about the server, as a sentence; empty if it is the server's.

    With an open tunnel, a connection that is reset is the server's: nothing listens on the machine.
    """
    if isinstance(error, AccessError):
        return str(error)
    if not access.is_open():
        return f"the tunnel ended: {error}"
    if isinstance(error, NotConnectedError) and access.behind_front_end:
        return f"this machine cannot connect to Google's front end: {error} Check its network, its DNS and its proxy."
    return ""


def endpoint_of(access: ServerAccess) -> Endpoint:
    """Return the server as the load tester calls it."""
    return Endpoint(
        base_url=access.base_url, headers=access.headers, not_reached=lambda error: not_reached(access, error)
    )
