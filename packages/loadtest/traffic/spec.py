"""What a load consists of, beyond its level and one length of prompt and answer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.traffic.images import ImageSize
from loadtest.traffic.lengths import Lengths
from loadtest.traffic.ramp import Ramp

DEFAULT_IMAGE: Final = ImageSize(width=896, height=896)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The load of a sweep. The default is what the other options say: one length of prompt and answer at a time."""

    input_lengths: Lengths | None = None
    output_lengths: Lengths | None = None
    prefix_share: float | None = None
    """Share of each prompt's words that all prompts of a point have in common."""
    prefix_tokens: int | None = None
    """Words at the start of each prompt that all prompts of a point have in common."""
    images: int = 0
    """Images in each request."""
    image_size: ImageSize = DEFAULT_IMAGE
    dataset: Path | None = None
    trace: Path | None = None
    time_scale: float = 1.0
    """A trace is replayed this many times as fast as it was recorded."""
    turns: int = 1
    """Requests of a session. Each sends the conversation so far."""
    think_time_s: float = 0.0
    """Seconds between an answer and the user's next message."""
    ramp: Ramp | None = None

    @property
    def shares_prompts(self) -> bool:
        """Whether prompts repeat text on purpose, so that hits of the prefix cache were asked for."""
        return self.prefix_share is not None or self.prefix_tokens is not None or self.turns > 1

    @property
    def name(self) -> str:
        """Text that says how the load differs from the default; empty if it does not."""
        parts: list[str] = []
        if self.dataset is not None:
            parts.append(f"dataset {self.dataset.name}")
        if self.trace is not None:
            parts.append(f"trace {self.trace.name} at {self.time_scale:g}x")
        if self.input_lengths is not None:
            parts.append(f"input {self.input_lengths.text}")
        if self.output_lengths is not None:
            parts.append(f"output {self.output_lengths.text}")
        if self.prefix_share is not None:
            parts.append(f"shared prefix {self.prefix_share:.0%}")
        if self.prefix_tokens is not None:
            parts.append(f"shared prefix {self.prefix_tokens} tokens")
        if self.images:
            parts.append(f"{self.images} x image {self.image_size.text}")
        if self.turns > 1:
            parts.append(f"sessions of {self.turns} turns, {self.think_time_s:g} s think time")
        if self.ramp is not None:
            parts.append(f"ramp {self.ramp.text}")
        return "; ".join(parts)

    @property
    def unsteady(self) -> bool:
        """Whether the load changes over time, so that a point has no steady part to judge."""
        return self.ramp is not None or self.trace is not None or self.think_time_s > 0

    @property
    def varied(self) -> bool:
        """Whether the load has parts that `vllm bench serve` has no option for."""
        return bool(
            self.trace or self.turns > 1 or self.images or self.ramp or self.input_lengths or self.output_lengths
        )

    def as_json(self) -> dict[str, Any]:
        """Return what run.json keeps. A continued sweep must have the same."""
        return {
            "input_lengths": self.input_lengths.text if self.input_lengths else None,
            "output_lengths": self.output_lengths.text if self.output_lengths else None,
            "prefix_share": self.prefix_share,
            "prefix_tokens": self.prefix_tokens,
            "images": self.images,
            "image_size": self.image_size.text if self.images else None,
            "dataset": str(self.dataset) if self.dataset else None,
            "trace": str(self.trace) if self.trace else None,
            "time_scale": self.time_scale,
            "turns": self.turns,
            "think_time_s": self.think_time_s,
            "ramp": self.ramp.text if self.ramp else None,
        }


FIXED_LENGTHS: Final = Traffic()
"""Prompts of one length, answers of one length, nothing shared."""
