"""Follow printed commands: each is typed literally until the stack serves or is gone.

What is printed at the end was not followed: it is a step of a person, or another command was followed.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.scripts.stack.claims import EXPLAINS, READS, next_in

SEED = 1
STEPS = 5
REFUSED = 2
READING = (
    "status {}",
    "chat {} Hello.",
    "smoke {}",
    "logs {}",
    "connect {} -- true",
    "plan {}",
    "preview {}",
    "doctor {}",
)
READ = 2
"""So many of them are typed in a situation in which no other command is typed first."""
USES = ("gemma chat", "gemma smoke", "gemma connect")
LEFT_OUT = re.compile(rf"{EXPLAINS.pattern}|^gemma \w+$")
"""Shows more, or is a command without its stack."""
OF_A_PERSON = re.compile(r"\b[A-Z][A-Z_]+\b|\.\.\.|^gcloud (?!services enable)")
"""A placeholder, or a command of gcloud that the local cloud does not have."""
ENDLESS = re.compile(r"--(?:follow|watch)\b")


@dataclass(frozen=True)
class Situation:
    """A damage, the commands that are typed first in it, and the one of them that changes the stack; empty if none does."""

    name: str
    first: tuple[str, ...]
    change: str = ""


def drawn(stack, table, changes, *, read=READ):
    """Yield the situations of a table in a drawn order, each with drawn commands: one of `changes`, or `read` that read where it is empty."""
    for name in Random(f"{SEED} {stack}").sample([*table], len(table)):  # noqa: S311 - an order, not a secret
        random = Random(f"{SEED} {stack} {name}")  # noqa: S311 - a new row changes no other
        change = random.choice(changes)
        first = [change] if change else random.sample(READING, read)
        yield Situation(name, tuple(f"gemma {one}".format(stack) for one in first), change)


@dataclass(kw_only=True)
class Followed:
    """One stack, what was typed, and what a person or Google does between the first commands and the next one.

    A world adds `type`, which types a command as it was printed, `serves`, and `left`, which returns what exists of the stack.
    """

    stack: str
    repairs: list = field(default_factory=list)
    told: dict = field(default_factory=dict)
    """What a command printed that failed while the situation was made."""
    typed: list = field(default_factory=list)
    reached: int = 0
    not_followed: Counter = field(default_factory=Counter)

    def play(self, situation, damage, ends):
        """Do a damage, type the first commands, and follow what they print. Return the end, which has to be one of `ends`."""
        self.typed, self.told = [], {}
        try:
            damage(self)
            answers = {line: self.type(line) for line in situation.first}
        finally:
            while self.repairs:
                self.repairs.pop()()
        if situation.change:
            ((line, answer),) = answers.items()
            return self.follow(line, answer, ("gone",) if situation.change.startswith("teardown") else ends)
        asked = {line: self.to_a_change(line, answer) for line, answer in {**answers, **self.told}.items()}
        chosen = next(filter(None, asked.values()), f"gemma up {self.stack}")
        self.reached += sum(one in {None, chosen} for one in asked.values())
        others = {line: one for line, one in asked.items() if one not in {None, chosen}}
        self.not_followed.update(f"{situation.name}: {line}: {one}" for line, one in others.items())
        return self.follow(chosen, self.type(chosen), ends)

    def to_a_change(self, line, said):
        """Type what is printed until it would change the stack, and return that command; None if the stack serves or a person is needed."""
        for _ in range(STEPS):
            if said.code == 0 and line.startswith(USES):
                return None
            command = self.next_command(line, said)
            if not READS.match(command):
                return command
            if command == line:
                return None
            line, said = command, self.type(command)
        return self.require(False, f"not at a change after {STEPS} commands")

    def follow(self, line, said, ends):
        """Type what is printed until the stack serves or is gone. Return the end."""
        before = set()
        for _ in range(STEPS + 1):
            if said.code == 0 and line.startswith("gemma teardown"):
                self.require("gone" in ends and not self.left(), f"it is torn down, with {self.left()} left")
                return "gone"
            if said.code == 0 and line.startswith(("gemma up", *USES)) and self.serves():
                self.require("serves" in ends, "it serves")
                return "serves"
            command = self.next_command(line, said)
            line, said = command, self.type(command)
            circle = (command, re.sub(r"[\d.:]+", "", said.text))
            self.require(circle not in before, f"`{command}` leads to itself")
            before.add(circle)
        return self.require(False, f"not at the end after {STEPS} commands")

    def next_command(self, line, said):
        """Return the printed command. A person who is told nothing asks for the status, or tries again if told so."""
        command = next_in(said.text, LEFT_OUT)
        if not command and said.code and re.search("[Tt]ry again|retry", said.text):
            return line
        names_fix = said.code == REFUSED or "Did you mean" in said.text
        if not command and names_fix:  # in the settings, which a person has made
            return line
        if not command and said.code == 0 and not line.startswith("gemma status"):
            return f"gemma status {self.stack}"
        self.require(command, "no next command is printed, and the stack does not serve")
        if OF_A_PERSON.search(command):
            self.not_followed[command] += 1
            return line  # the person has done it, and tries again
        if ENDLESS.search(command):  # a person watches until it changes
            return f"gemma status {self.stack}"
        return f"{command} -- true" if command == f"gemma connect {self.stack}" else command  # it runs until Ctrl-C

    def require(self, holds, why):
        """Fail with all that was typed and printed."""
        assert holds, "\n".join([why, *self.typed])
