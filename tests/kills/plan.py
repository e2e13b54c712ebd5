"""What a run does: everything that is drawn by chance, from the seed and the number of the cycle alone."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TPU, GPU = "tpu-v6e1", "l4-12b-qat"
STACKS: Final = (TPU, GPU)

SIGNALS: Final = ("SIGKILL", "SIGKILL", "SIGKILL", "SIGTERM", "SIGINT")
"""SIGKILL most often: no program can prepare for it."""

TARGETS: Final = {
    "engine": 6,
    "command": 3,
    "program": 2,
    "language host": 2,
    "provider": 3,
    "group": 2,
    "everything": 2,
    "local cloud": 1,
}
"""What is hit, with its weight.

`command` is the process that was started: a script, or the engine itself. `group` is its process group, which a terminal's Ctrl-C hits.
`everything` is each process below it, as when a machine loses power. `local cloud` hosts the stand-ins of the plugins gcp and docker.
"""

COMMANDS: Final = {"up": 7, "update": 3, "come back": 4, "destroy": 2, "stage": 1, "teardown": 2}
"""Interrupted commands, with their weights. `up` is the engine's, and `come back` is `gemma up`."""

CALLS: Final = {
    TPU: {"up": 28, "update": 3, "come back": 5, "destroy": 18, "teardown": 18},
    GPU: {"up": 9, "update": 2, "teardown": 7, "stage": 3},
}
"""How many calls that change something a whole command makes, about."""
SECONDS: Final = {
    "up": 6.0,
    "update": 4.0,
    "come back": 12.0,
    "destroy": 4.0,
    "teardown": 5.0,
    "stage": 3.0,
}
"""How long a whole command takes on an idle machine, about."""
LAG_S: Final = 0.4
"""A kill comes up to so long after the call that it waits for."""

ENDS: Final = ("run expired", "preempted")
"""Ends of a machine. The next interrupted command brings it back."""
EDITS: Final = {
    TPU: ("zones reversed", "first zone dropped", "no stock in the first zone", "length", "member", "all zones", *ENDS),
    GPU: ("region", "length", "concurrency", "home region"),
}
DAMAGES: Final = ("deleted", "deleted with its copy", "cut in half")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When a kill comes: `seconds` after the command's start, or after the `call`-th call that changes something."""

    call: int | None
    seconds: float

    def __str__(self) -> str:
        """Return the moment for people."""
        return f"{self.seconds:.2f} s after " + (f"call {self.call}" if self.call else "the start")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One signal to one target in the middle of a command."""

    command: str
    target: str
    signal: str
    moment: Moment

    def __str__(self) -> str:
        """Return the kill for people."""
        return f"{self.signal} to {self.target} during {self.command}, {self.moment}"


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change of the settings, of what a zone has in stock, or the end of the machine."""

    what: str

    def __str__(self) -> str:
        """Return the edit for people."""
        return self.what if self.what in ENDS else f"settings: {self.what}"


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A command that runs to its end."""

    command: str
    may_fail: bool = False

    def __str__(self) -> str:
        """Return the command for people."""
        return f"whole {self.command}"


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What happens to the state."""

    what: str

    def __str__(self) -> str:
        """Return the damage for people."""
        return f"state {self.what}"


Step = Kill | Edit | Damage | Whole


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """Kills, edits and damage in their order, and how the cycle ends: `comes_back` is `gemma up`, then teardown; else teardown alone."""

    number: int
    stack: str
    steps: tuple[Step, ...]
    comes_back: bool


def cycle(seed: int, number: int, kills: int, stacks: Sequence[str] = STACKS) -> Cycle:
    """Return a cycle with this many kills, on one of the stacks in turn."""
    chance = random.Random(f"{seed}:{number}")  # noqa: S311 - a schedule, not a secret
    stack = stacks[number % len(stacks)]
    comes_back = chance.random() < 0.6
    steps: list[Step] = []
    for position in range(kills):
        command = "" if position else "up"
        if position and chance.random() < 0.4:
            what = chance.choice(EDITS[stack])
            if what in ENDS:  # of a machine that serves, unless an earlier step prevents it
                steps.append(Whole(command="come back", may_fail=True))
                command = "come back"
            steps.append(Edit(what=what))
        steps.append(_kill(chance, stack, command))
        if position and chance.random() < 0.5 / kills:
            steps.append(Damage(what=chance.choice(DAMAGES)))
    return Cycle(number=number, stack=stack, steps=tuple(steps), comes_back=comes_back)


def _kill(chance: random.Random, stack: str, command: str) -> Kill:
    # The engine refuses to destroy a bucket with weights, and only the stack with a GPU has one. Only a TPU's run ends.
    others = {"destroy", "come back"} if stack == GPU else {"stage"}
    commands = {name: weight for name, weight in COMMANDS.items() if name not in others}
    command = command or _weighted(chance, commands)
    return Kill(
        command=command,
        target=_weighted(
            chance, {name: weight for name, weight in TARGETS.items() if name != "provider" or stack == TPU}
        ),
        signal=chance.choice(SIGNALS),
        moment=_moment(chance, command, CALLS[stack]),
    )


def _moment(chance: random.Random, command: str, calls: dict[str, int]) -> Moment:
    if command in calls and chance.random() < 0.7:
        return Moment(call=chance.randint(1, calls[command]), seconds=round(chance.uniform(0, LAG_S), 2))
    return Moment(call=None, seconds=round(chance.uniform(0.3, SECONDS[command]), 2))


def _weighted(chance: random.Random, weights: dict[str, int]) -> str:
    return chance.choices(list(weights), weights=list(weights.values()))[0]
