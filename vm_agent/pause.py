"""Pause of a change, as published by the machine: from the stop of the old server until a server responds again."""

from dataclasses import dataclass

from contracts.guest_attributes import PAUSE_BEGAN_KEY, PAUSE_ENDED_KEY
from vm_agent.kept import KeptState
from vm_agent.publishing import PhasePublisher, utc_now


@dataclass
class Pause:
    """Publisher of the time in which nothing served, across restarts of the agent."""

    kept: KeptState
    publisher: PhasePublisher

    def forget(self, text_hash: str) -> None:
        """Unpublish the pause of the previous change, unless it continues. An earlier agent may have published it."""
        if not self.kept.pause_began_at and self.kept.paused_for not in {"", text_hash}:
            self.publisher.set_fact(PAUSE_BEGAN_KEY, "")
            self.publisher.set_fact(PAUSE_ENDED_KEY, "")
            self.kept.keep_pause("")

    def begin(self) -> None:
        """Record the start of the pause, unless one is in progress."""
        if self.kept.pause_began_at:
            return  # a pause of the change that is now rolled back
        self.kept.keep_pause(utc_now())
        self.publisher.set_fact(PAUSE_ENDED_KEY, "")
        self.publisher.set_fact(PAUSE_BEGAN_KEY, self.kept.pause_began_at)

    def end(self, asked_hash: str) -> None:
        """Record the end of the pause, if there was one."""
        if self.kept.pause_began_at:
            self.publisher.set_fact(PAUSE_BEGAN_KEY, self.kept.pause_began_at)
            self.publisher.set_fact(PAUSE_ENDED_KEY, utc_now())
            self.kept.keep_pause("", asked_hash)
