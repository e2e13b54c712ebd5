"""Convert load tester errors to command errors."""

import contextlib
from collections.abc import Generator

from contracts.errors import CommandRefusedError
from loadtest.errors import NotReachedError, SweepError
from scripts.cli.access import AccessError


@contextlib.contextmanager
def refused() -> Generator[None]:
    """Raise CommandRefusedError for an invalid sweep, and AccessError if the connection to the server closed."""
    try:
        yield
    except NotReachedError as error:
        raise AccessError(str(error)) from None
    except SweepError as error:
        raise CommandRefusedError(str(error)) from None
