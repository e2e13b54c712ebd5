"""Run expiry: the time at which Google deletes the machine, and the graceful stop of the server before it."""

import time
from dataclasses import dataclass
from datetime import datetime, timezone

from contracts.guest_attributes import ENDING, ENDS_AT_KEY, SERVING_HASH_KEY
from contracts.rollout import ENDS_AT_METADATA_KEY
from vm_agent.base import log
from vm_agent.containers import container_state, remove_container
from vm_agent.follow import LatestDocument
from vm_agent.publishing import PhasePublisher
from vm_agent.running_server import RunningServer

ENDING_LEAD_S = 60
"""Time between the stop of the server and the run expiry. The drain ends before it."""
RUN_ENDS = "The run is about to expire."


def parse_time(text: str) -> float:
    """Return an RFC 3339 time in seconds since 1970. Raises ValueError."""
    whole, _, fraction = text.strip().rstrip("Z").partition(".")
    parsed = datetime.fromisoformat(whole)
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=timezone.utc)
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    return parsed.timestamp() + float(f"0.{digits or 0}")


@dataclass
class RunEnd:
    """Expiry of the run, if the machine has one."""

    latest: LatestDocument
    publisher: PhasePublisher
    server: RunningServer
    ends_at_s: "float | None" = None
    """Time at which Google deletes the machine, in seconds since 1970; None if unknown."""

    def set(self, text: "str | None") -> None:
        """Store the time at which Google deletes the machine, and publish it."""
        try:
            self.ends_at_s = parse_time(text) if text else None
        except ValueError as error:
            log(f"{ENDS_AT_METADATA_KEY} is not a valid time: {error}.")
            return
        self.publisher.set_fact(ENDS_AT_KEY, text or "")

    def is_soon(self) -> bool:
        """Return whether no server may start any more."""
        lead_s = ENDING_LEAD_S + self.latest.limits().drain_s
        return self.ends_at_s is not None and time.time() > self.ends_at_s - lead_s

    def end_server(self, text_hash: str) -> None:
        """Drain running requests, and stop the server before Google deletes the machine."""
        with_end = datetime.fromtimestamp(self.ends_at_s or 0.0, timezone.utc)
        self.publisher.publish(ENDING, text_hash, f"Google will delete the machine at {with_end:%Y-%m-%d %H:%M:%S} UTC")
        state = container_state()
        if state and state.running:
            self.server.wait_until_idle(state, self.latest.limits().drain_s)
            remove_container()
        self.publisher.set_fact(SERVING_HASH_KEY, "")
