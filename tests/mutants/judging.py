"""Which tests judge a mutant, and what they say."""

import ast
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, Final

from tests.mutants.changes import Mutant
from tests.mutants.forks import ROOT, SWITCHED, Job, collected, in_forks, judged, measured, name_of
from tests.suite import _shares_a_fixture

WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """One test, measured without a change."""

    name: str
    cpu_s: float
    took_s: float
    passed: bool
    reached: frozenset[int | str]

    @property
    def file(self) -> str:
        """File in which it is."""
        return self.name.partition("::")[0]


@dataclass(slots=True)
class Verdict:
    """What the tests say of a mutant: the one that fails, an empty text if none does, None if they do not end by themselves."""

    mutant: Mutant
    tests: Sequence[str] = ()
    caught_by: str | None = ""
    cpu_s: float = 0.0

    @property
    def answer(self) -> str:
        """One word."""
        return "unknown" if self.caught_by is None else "caught" if self.caught_by else "survived"


def chosen(
    reaching: Iterable[Measured], tests: Iterable[Measured], whole: Iterable[str], module: str
) -> list[Measured]:
    """Return tests that reach something of a module: files that import it before others, the cheapest file first.

    The tests of a `whole` file follow one another. Others may wait for real on a changed module, up to the limit of the fork.
    """
    files = dict[str, list[Measured]]()
    for test in reaching:
        files.setdefault(test.file, []).append(test)
    for file in files.keys() & {*whole}:
        files[file] = [test for test in tests if test.file == file]
    kept = {file: [test for test in each if test.passed] for file, each in files.items()}
    order = sorted(kept, key=lambda file: (module not in _imports(file), sum(test.cpu_s for test in kept[file])))
    return [test for file in order for test in kept[file]]


@cache
def _imports(file: str) -> frozenset[str]:
    """Return the names of the modules that a file imports, and of what it imports from them."""
    nodes = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    found = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return frozenset(
        name for node in found for each in node.names for name in (node.module or "", f"{node.module}.{each.name}")
    )


def users_of(file: str, tests: Iterable[Measured]) -> list[Measured]:
    """Return tests that run a module, or one with switches that imports it, or whose own file does; all if there is none."""
    name = name_of(file)
    users = frozenset({file, *(other for other, _ in SWITCHED.values() if name in _imports(other))})
    return [test for test in tests if users & test.reached or name in _imports(test.file)] or [*tests]


def judge(mutants: Sequence[Mutant], folders: Sequence[str]) -> Sequence[Verdict]:
    """Return what tests in some folders say of each mutant."""
    verdicts = [Verdict(mutant) for mutant in mutants]
    SWITCHED.clear()
    for number, mutant in enumerate(mutants):
        SWITCHED.setdefault(name_of(mutant.file), (mutant.file, {}))[1][mutant.place] = number
    found = _in_child(partial(collected, folders, partial(_judge_collected, verdicts)))
    if found is None:
        sys.exit("The tests cannot be collected.")
    for verdict, row in zip(verdicts, found["verdicts"], strict=True):
        verdict.tests, verdict.caught_by, verdict.cpu_s = row
    for name in found["installed"]:
        with suppress(Exception):
            import_module(name)
    tests = [Measured(*row[:-1], frozenset(row[-1])) for row in found["tests"]]
    cold = list[Job]()
    for number in found["early"]:
        if isinstance(number, int) and not verdicts[number].caught_by:
            file = mutants[number].file
            these = chosen(users_of(file, tests), tests, found["whole"], name_of(file))
            verdicts[number].tests = [test.name for test in these]
            cold.append(_job(number, partial(_judge_alone, these, number), these, collecting_s=60.0))
    _note(verdicts, in_forks(cold, WORKERS))
    return verdicts


def _job(name: object, work: Callable[[], Any], tests: Sequence[Measured], collecting_s: float = 0.0) -> Job:
    cpu_s, took_s = sum(test.cpu_s for test in tests), sum(test.took_s for test in tests)
    return Job(name, work, collecting_s + cpu_s, collecting_s + took_s)


def _note(verdicts: Sequence[Verdict], results: Iterable[tuple[int, str | None, float]]) -> None:
    for number, caught_by, cpu_s in results:
        verdicts[number].caught_by = caught_by
        verdicts[number].cpu_s += cpu_s
        mutant = verdicts[number].mutant
        by = f" by {caught_by}" if caught_by else ""
        print(f"{verdicts[number].answer:9}{mutant.file}:{mutant.line}: {mutant.change}{by}", flush=True)


def _judge_alone(tests: Sequence[Measured], made: int) -> str:
    """Judge a mutant in a process that has imported no module with switches."""
    names = [test.name for test in tests]

    def work(session, switch):
        items = {item.nodeid: item for item in session.items}
        return judged(session, [items[name] for name in names if name in items], switch, made)

    caught_by = None
    with suppress(Exception):
        caught_by = collected(dict.fromkeys(test.file for test in tests), work, made)
    return "the import of a module" if caught_by is None else caught_by


def _judge_collected(verdicts: Sequence[Verdict], session: Any, switch: Any) -> dict[str, object]:
    """Measure the tests and judge the mutants, in the process that has collected them."""
    early, files = list(switch.reached), dict[str, list[Any]]()
    for item in session.items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    whole = [file for file, items in files.items() if any(map(_shares_a_fixture, items))]
    jobs = [Job(file, partial(measured, session, items, switch), 600.0, 600.0) for file, items in files.items()]
    rows, absent = [], []
    for file, result, _ in in_forks(jobs, WORKERS):
        rows += result or []
        absent += [] if result else [file]
    tests = [Measured(*row[:-1], frozenset(row[-1])) for row in rows]
    left_out = [*absent, *(test.name for test in tests if not test.passed)]
    print(f"{len(tests)} tests, {sum(test.cpu_s for test in tests):.0f} CPU s without a change", flush=True)
    print(*(f"left out, because it fails without a change: {name}\n" for name in left_out), sep="", end="", flush=True)
    items = {item.nodeid: item for item in session.items}
    judges = list[Job]()
    for number, verdict in enumerate(verdicts):
        reaching = [test for test in tests if number in test.reached]
        these = chosen(reaching, tests, whole, name_of(verdict.mutant.file))
        verdict.tests = [test.name for test in these]
        work = partial(judged, session, [items[test.name] for test in these], switch, number)
        judges += [_job(number, work, these)] if these else []
    _note(verdicts, in_forks(judges, WORKERS))
    return {
        "verdicts": [(verdict.tests, verdict.caught_by, verdict.cpu_s) for verdict in verdicts],
        "installed": [
            name for name, each in sys.modules.items() if "site-packages" in (getattr(each, "__file__", "") or "")
        ],
        "tests": rows,
        "whole": whole,
        "early": early,
    }


def _in_child(work: Callable[[], Any]) -> Any:
    """Return the result of work in a child process, which prints here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            with os.fdopen(writing, "w") as stream:
                json.dump(work(), stream)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    return json.loads(text)
