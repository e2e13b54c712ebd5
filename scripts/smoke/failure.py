"""Whether waiting for a server is in vain: the agent of a TPU machine says that it does not try again."""

from datetime import UTC, datetime

from cloud import google_api
from contracts.errors import ScriptError
from contracts.guest_attributes import FAILED
from contracts.masking import masked
from engine import state as states
from scripts.status.face import CAPACITY, DeployedServer, cloud_facts, serving


class ServerFailure:
    """Asks Google about the machine of one stack; the state is read once."""

    def __init__(self, stack: str) -> None:
        self._stack = stack
        self._found: DeployedServer | None = None

    def __call__(self) -> str | None:
        """Return why the server will not become ready, as one sentence; None if it may, and if it is unknown."""
        try:
            self._found = self._found or serving(states.read(self._stack))
            if self._found is None or self._found.kind not in CAPACITY:
                return None
            api = google_api.connect(self._found.project)
            facts = cloud_facts(api, self._found, stack=self._stack, now=datetime.now(UTC))
        except ScriptError:
            return None
        # A machine that has just got a new document still says how the one before ended.
        if facts.phase != FAILED or facts.reported != facts.stored or facts.running:
            return None
        last = next((line.strip() for line in reversed((facts.phase_detail or "").splitlines()) if line.strip()), "")
        said = f": {masked(last).rstrip('.')}" if last else ""
        return f"the server failed, and its machine does not try again{said}. `python -m scripts.logs --stack {self._stack}` shows its lines."
