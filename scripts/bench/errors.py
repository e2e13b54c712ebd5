"""The error of a sweep that cannot be run as asked."""

from contracts.errors import CommandRefusedError


class SweepError(CommandRefusedError):
    """The sweep cannot be run as asked; the message is one sentence with the way out."""
