"""The pause of a change: from the stop of the old server until one answers again, as the machine publishes it."""

from dataclasses import dataclass

from contracts.guest_attributes import PAUSE_BEGAN_KEY, PAUSE_ENDED_KEY
from vm_agent.kept import KeptState
from vm_agent.publishing import PhasePublisher, utc_now


@dataclass
class Pause:
    """Publishes when nothing served, also across a restart of the agent."""

    kept: KeptState
    publisher: PhasePublisher

    def forget(self, text_hash: str) -> None:
        """Unpublish the pause of the change before, unless it goes on. An earlier agent may have published it."""
        if not self.kept.pause_began_at and self.kept.paused_for not in {"", text_hash}:
            self.publisher.set_fact(PAUSE_BEGAN_KEY, "")
            self.publisher.set_fact(PAUSE_ENDED_KEY, "")
            self.kept.keep_pause("")

    def begin(self) -> None:
        """Note the beginning, unless the pause goes on."""
        if self.kept.pause_began_at:
            return  # of the change that is rolled back now
        self.kept.keep_pause(utc_now())
        self.publisher.set_fact(PAUSE_ENDED_KEY, "")
        self.publisher.set_fact(PAUSE_BEGAN_KEY, self.kept.pause_began_at)

    def end(self, asked_hash: str) -> None:
        """Note the end, if there was a pause."""
        if self.kept.pause_began_at:
            self.publisher.set_fact(PAUSE_BEGAN_KEY, self.kept.pause_began_at)
            self.publisher.set_fact(PAUSE_ENDED_KEY, utc_now())
            self.kept.keep_pause("", asked_hash)
