"""The server of known timing, of the load tester's own tests."""

from loadtest.tests.conftest import server, start_server

__all__ = ["server", "start_server"]
