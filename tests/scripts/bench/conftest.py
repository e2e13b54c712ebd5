"""The server of known timing, of the load tester's own tests."""

from loadtest.tests.conftest import calm, server, start_server

__all__ = ["calm", "server", "start_server"]
