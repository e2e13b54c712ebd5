"""Why a sweep cannot be run as asked."""


class SweepError(Exception):
    """The sweep cannot be run as asked; the message is one sentence with the way out."""


class NotReachedError(SweepError):
    """The way to the server has ended, which says nothing about the server."""
