"""Cycles one after the other until enough kills have hit, and their summary."""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.kills import plan, strangers
from tests.kills.run import Outcome, Runner
from tests.kills.world import World


@dataclass(kw_only=True)
class Summary:
    """What a series did and found."""

    seed: int
    outcomes: Sequence[Outcome]
    foreign: int
    seconds: float

    @property
    def problems(self) -> list[str]:
        """Return what did not hold, with what it takes to replay it: the steps, and then the sentence, so that the end of an output has it."""
        return [
            "\n".join(f"  {line}" for line in each.history)
            + f"\nseed {self.seed}, cycle {each.cycle.number} ({each.cycle.stack}): {problem}"
            for each in self.outcomes
            for problem in each.problems
        ]

    def figures(self) -> dict[str, object]:
        """Return the figures."""
        hits = [done for each in self.outcomes for done in each.kills if not done.missed]
        return {
            "seed": self.seed,
            "kills": len(hits),
            "missed": sum(len(each.kills) for each in self.outcomes) - len(hits),
            "cycles": len(self.outcomes),
            "failed": sum(bool(each.problems) for each in self.outcomes),
            "came_back": sum(each.came_back for each in self.outcomes),
            "to_come_back": sum(each.cycle.comes_back for each in self.outcomes),
            "foreign": self.foreign,
            "seconds": round(self.seconds),
            "by_signal": dict(Counter(done.kill.signal for done in hits)),
            "by_target": dict(Counter(done.kill.target for done in hits)),
            "by_command": dict(Counter(done.kill.command for done in hits)),
        }

    def to_json(self) -> str:
        """Return one JSON object."""
        return json.dumps({**self.figures(), "problems": self.problems}, indent=1)

    def to_text(self) -> str:
        """Return the problems, and the figures one a line."""
        return "\n".join([*self.problems, *(f"{name}: {figure}" for name, figure in self.figures().items())])


@dataclass(kw_only=True)
class Series:
    """A local cloud with strangers, and the cycles on it."""

    folder: Path
    seed: int
    each: int
    first: int = 0
    stacks: Sequence[str] = plan.STACKS
    history: Path | None = None
    """File that gets a line of JSON at the start, one after each cycle and one at the end."""
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self, count: int) -> Summary:
        """Run cycles until so many kills have hit. After a cycle in which something did not hold, go on with a new cloud."""
        started_s, number, foreign = time.monotonic(), self.first, 0
        world: World | None = None
        self._note({"seed": self.seed, "count": count, "each": self.each, "first": self.first, "stacks": self.stacks})
        try:
            while self._hits() < count:
                if world is None:
                    world = self._world(number)
                    foreign = len(world.snapshot())
                outcome = Runner(world, plan.cycle(self.seed, number, self.each, self.stacks)).run()
                self.outcomes.append(outcome)
                self._tell(outcome)
                self._note(outcome.to_json())
                if outcome.problems:
                    world.close()
                    world = None
                number += 1
        finally:
            if world is not None:
                world.close()
        summary = Summary(seed=self.seed, outcomes=self.outcomes, foreign=foreign, seconds=time.monotonic() - started_s)
        self._note({"end": "failed" if summary.problems else "held", **summary.figures()})
        return summary

    def _note(self, line: Mapping[str, object]) -> None:
        """Append a line to the history at once: a series that is stopped keeps what it did."""
        if self.history is not None:
            self.history.parent.mkdir(parents=True, exist_ok=True)
            with self.history.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")

    def _hits(self) -> int:
        return sum(not done.missed for each in self.outcomes for done in each.kills)

    def _world(self, number: int) -> World:
        world = World(folder=self.folder / f"from-{number:04d}")
        world.folder.mkdir(parents=True)
        world.open()
        strangers.settle(world)
        return world

    def _tell(self, outcome: Outcome) -> None:
        way = "up, teardown" if outcome.cycle.comes_back else "teardown"
        hits = sum(not done.missed for done in outcome.kills)
        word = "FAILED" if outcome.problems else "held"
        print(
            f"cycle {outcome.cycle.number} {outcome.cycle.stack}: {hits} kills, then {way}: {word}, {outcome.seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        for line in (*outcome.history, *outcome.problems) if outcome.problems else ():
            print(f"  {line}", file=sys.stderr, flush=True)


def assert_cycle_holds(folder: Path, cycle: plan.Cycle) -> None:
    """Go through one fixed cycle, and check that every kill hit and everything held."""
    world = World(folder=folder)
    world.open()
    try:
        outcome = Runner(world, cycle).run()
    finally:
        world.close()
    assert outcome.problems == [], "\n".join([*outcome.history, *outcome.problems])
    assert not [str(done) for done in outcome.kills if done.missed]
    assert outcome.came_back == cycle.comes_back


def assert_kills_lose_nothing(folder: Path, stack: str, count: int) -> None:
    """Kill so many times on one stack, and check that everything held."""
    summary = Series(folder=folder, seed=1, each=12, stacks=(stack,)).run(count)
    assert summary.problems == [], "\n".join(summary.problems)
    figures = summary.figures()
    assert figures["kills"] >= count
    assert figures["came_back"] == figures["to_come_back"]
    assert figures["foreign"] > 10
