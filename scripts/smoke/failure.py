"""Detect a server that will not become ready because the agent of its TPU node has stopped its attempts."""

from typing import Final

from gemma_serving.contracts.guest_attributes import FAILED
from gemma_serving.contracts.masking import masked
from gemma_serving.engine import state as states
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack.facts import read_facts

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
        facts = read_facts(self._state, "server", limit_s=_LIMIT_S).cloud
        if facts is None:
            return None
        # A node that has just received a new document still reports the result of the previous one.
        if facts.phase != FAILED or facts.reported != facts.stored or facts.running:
            return None
        last = next((line.strip() for line in reversed((facts.phase_detail or "").splitlines()) if line.strip()), "")
        reason = f": {masked(last).rstrip('.')}" if last else ""
        return f"the server failed permanently{reason}. Run `gemma logs {self._stack}`."
