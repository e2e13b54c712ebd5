"""Errors of the load tester as those of a command."""

import contextlib
from collections.abc import Generator

from contracts.errors import CommandRefusedError
from loadtest.errors import NotReachedError, SweepError
from scripts.cli.access import AccessError


@contextlib.contextmanager
def refused() -> Generator[None]:
    """Raise CommandRefusedError for a sweep that cannot be run as asked, and AccessError if the way to its server has ended."""
    try:
        yield
    except NotReachedError as error:
        raise AccessError(str(error)) from None
    except SweepError as error:
        raise CommandRefusedError(str(error)) from None
