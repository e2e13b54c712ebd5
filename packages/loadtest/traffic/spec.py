"""Definition of a load, beyond its level and one length of prompt and response."""

from dataclasses import dataclass
from typing import Any, Final

from loadtest.traffic.lengths import Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Load of a sweep. The default follows the other options: one length of prompt and response per point."""

    input_lengths: Lengths | None = None
    output_lengths: Lengths | None = None
    prefix_share: float | None = None
    """Share of each prompt's words that is the same in all prompts of a point."""
    prefix_tokens: int | None = None
    """Words at the start of each prompt that are the same in all prompts of a point."""
    adapters: tuple[str, ...] = ()
    """Names that the requests send as `model` in turn; empty to name the served model."""
    turns: int = 1
    """Requests per session. Each sends the conversation so far."""
    think_time_s: float = 0.0
    """Seconds between a response and the user's next message."""

    @property
    def shares_prompts(self) -> bool:
        """True if prompts repeat text on purpose, so prefix cache hits are intended."""
        return self.prefix_share is not None or self.prefix_tokens is not None or self.turns > 1

    @property
    def name(self) -> str:
        """Difference of the load from the default, as text; empty without one."""
        parts: list[str] = []
        if self.input_lengths is not None:
            parts.append(f"input {self.input_lengths.text}")
        if self.output_lengths is not None:
            parts.append(f"output {self.output_lengths.text}")
        if self.prefix_share is not None:
            parts.append(f"shared prefix {self.prefix_share:.0%}")
        if self.prefix_tokens is not None:
            parts.append(f"shared prefix {self.prefix_tokens} tokens")
        if self.adapters:
            parts.append(f"adapters {', '.join(self.adapters)} in turn")
        if self.turns > 1:
            parts.append(f"sessions of {self.turns} turns, {self.think_time_s:g} s think time")
        return "; ".join(parts)

    @property
    def unsteady(self) -> bool:
        """True if the load changes over time, so a point has no steady part to judge."""
        return self.think_time_s > 0

    def as_json(self) -> dict[str, Any]:
        """Return the entries of run.json. A continued sweep must have the same."""
        return {
            "input_lengths": self.input_lengths.text if self.input_lengths else None,
            "output_lengths": self.output_lengths.text if self.output_lengths else None,
            "prefix_share": self.prefix_share,
            "prefix_tokens": self.prefix_tokens,
            "turns": self.turns,
            "think_time_s": self.think_time_s,
            "adapters": list(self.adapters),
        }


FIXED_LENGTHS: Final = Traffic()
"""Prompts of one length, responses of one length, nothing shared."""
