"""Detect a server that will not become ready because the agent of its TPU node has stopped its attempts."""

from typing import Final

from gemma_serving.engine import state as states
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack.facts import read_facts
from gemma_serving.scripts.stack.serves import dead_server

_LIMIT_S: Final = 60.0
"""Timeout of Google's answer."""


class ServerFailure:
    """Failure detector for one stack, whose state is read once."""

    def __init__(self, stack: str) -> None:
        self._stack = stack
        self._state: StackState | None = None

    def __call__(self) -> str | None:
        """Return why the server will not become ready; None if it can or if that is unknown."""
        self._state = self._state or states.read(self._stack)
        return dead_server(read_facts(self._state, "server", limit_s=_LIMIT_S)) or None
