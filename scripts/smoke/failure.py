"""Detect a server that will not become ready because the agent of its TPU node has stopped its attempts."""

from gemma_serving.cloud import google_api
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.guest_attributes import FAILED
from gemma_serving.contracts.masking import masked
from gemma_serving.engine import state as states
from gemma_serving.scripts.status.api import CAPACITY, DeployedServer, cloud_facts, serving


class ServerFailure:
    """Failure detector for one stack, whose state is read once."""

    def __init__(self, stack: str) -> None:
        self._stack = stack
        self._found: DeployedServer | None = None

    def __call__(self) -> str | None:
        """Return why the server will not become ready; None if it can or if that is unknown."""
        try:
            self._found = self._found or serving(states.read(self._stack))
            if self._found is None or self._found.kind not in CAPACITY:
                return None
            api = google_api.connect(self._found.project)
            facts = cloud_facts(api, self._found, stack=self._stack)
        except ScriptError:
            return None
        # A node that has just received a new document still reports the result of the previous one.
        if facts.phase != FAILED or facts.reported != facts.stored or facts.running:
            return None
        last = next((line.strip() for line in reversed((facts.phase_detail or "").splitlines()) if line.strip()), "")
        reason = f": {masked(last).rstrip('.')}" if last else ""
        return f"the server failed permanently{reason}. Run `gemma logs {self._stack}`."
