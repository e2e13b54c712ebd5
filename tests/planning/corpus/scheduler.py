"""Steps and times to the first token of vLLM's own scheduler: scheduler.csv has each scenario with its answer. Times are in steps of one decoding request."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter

FILE: Final = Path(__file__).with_name("scheduler.csv")


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SchedulerScenario(_Row):
    """Users in a closed loop, and what steps cost. The field names are columns of the file."""

    users: int
    prompt_tokens: int
    shared_tokens: int
    """Tokens of a prompt that are the same in all prompts, and so come from the prefix cache."""
    output_tokens: int
    budget_tokens: int
    """max-num-batched-tokens."""
    rounds: int
    """Requests of each user."""
    drawn: bool
    """Whether each prompt and response has a random length, half to one and a half times the stated one, which puts requests at random phases."""
    prompt_cost: float
    """Time that 1,000 tokens of prompts add to a step."""
    decode_cost: float
    """Time that each decoding request except the first adds to a step."""


class SchedulerAnswer(_Row):
    """Means of the first requests of all users, and of the later ones, without the second ones if lengths are drawn."""

    requests_per_time: float
    first_time: float
    """Time to the first token of the first requests, which all users send at once."""
    later_time: float
    later_median_time: float
    later_steps: float
    """Steps that end between the arrival of a request and its first token, the one that generates it included."""


class SchedulerRow(SchedulerScenario, SchedulerAnswer):
    """A scenario with its answer."""

    @property
    def answer(self) -> Mapping[str, float]:
        """The answer alone."""
        return {name: getattr(self, name) for name in SchedulerAnswer.model_fields}

    @property
    def scenario(self) -> Mapping[str, float]:
        """The scenario alone."""
        return {name: getattr(self, name) for name in SchedulerScenario.model_fields}


def stored_rows() -> Sequence[SchedulerRow]:
    """Return the rows of the file."""
    with FILE.open(encoding="utf-8", newline="") as stream:
        return TypeAdapter(list[SchedulerRow]).validate_python(list(csv.DictReader(stream)))
