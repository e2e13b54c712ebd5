"""Errors that prevent a sweep from running as requested."""


class SweepError(Exception):
    """The sweep cannot run as requested. The message is one sentence with the fix."""


class NotReachedError(SweepError):
    """The connection to the server was lost. This is not a problem of the server."""
