"""How the suite is divided and ordered, and what it costs: CPU seconds by file, as multiples of a fixed loop, within a budget."""

import contextlib
import fcntl
import gc
import itertools
import json
import random
import re
import resource
import statistics
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.engine.warm import running_cpu_s

COSTS = Path(__file__).with_name("costs.json")
"""Cost of each file when it was last recorded: `loops`, multiples of the fixed loop, `wall_s`, and `reason` above `LOOPS_WITHOUT_REASON`. Files below
one loop are left out."""
LOOPS_WITHOUT_REASON = 150
SHOWN_FILES = 10
_CPU_S = "cpu_s"
_REPORTS_PER_LOOP = 400
_LAST_COLLECTED = COSTS.with_name("vm_agent") / "__pycache__"


@contextlib.contextmanager
def _compiled_once(config):
    """Let one worker compile the tests of a clean checkout while the others wait: each would do it, and it costs more than to collect them.

    The kernel ends the wait when that worker's file is closed, however it ends.
    """
    with Path(__file__).open(encoding="utf-8") as file:
        if hasattr(config, "workerinput") and not any(_LAST_COLLECTED.glob("*-pytest-*.pyc")):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(file, fcntl.LOCK_SH)
                fcntl.flock(file, fcntl.LOCK_UN)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collect no garbage while the tests are collected, as nearly all that is made then stays, and leave it out of later collections of garbage.

    Each would take a second of a processor, and a load generator collects garbage for each point.
    """
    gc.disable()
    try:
        with _compiled_once(session.config):
            return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(50_000, 20, 50)  # a twelfth less CPU time of tests that make many objects
        _METER.take_s()  # what collecting took is in the whole, and not the first file's


@pytest.fixture
def without_collection():
    """Collect no garbage during a test of deeply nested input: it could start at the deepest level, where finalizers of other tests fail."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def pytest_addoption(parser):
    parser.addoption(
        "--long",
        action="store_true",
        help="run the long suite: every file with a test that is marked `long` or `law`, whole, because its tests follow one another",
    )
    parser.addoption(
        "--part",
        metavar="K/N",
        help="run the K-th of N parts, 1/N to N/N: every N-th file of those that are left, so that the parts together are all of them",
    )
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run the files in a random order, and the tests of a file too, unless they share a fixture of their module",
    )
    parser.addoption("--budget", type=int, metavar="LOOPS", help="fail if the suite costs more than LOOPS fixed loops")
    parser.addoption("--record-cost", action="store_true", help=f"write the cost of each file to {COSTS.name}")


def part_of(files, part):
    """Return the files of a part such as `2/6`. Raises UsageError if there is no such part."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", part)
    number, count = (int(each) for each in found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        raise pytest.UsageError(f"--part is {part}; it has to be K/N with K from 1 to N, for example 2/6.")
    return set(sorted(files)[number - 1 :: count])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep the tests of the suite that was asked for, and of its part, in the order in which they are to run."""
    if config.getoption("--long"):
        files = {_file(item.nodeid) for item in items if _is_long(item) or item.get_closest_marker("law")}
        kept = [item for item in items if _file(item.nodeid) in files]
    else:
        kept = [item for item in items if not _is_long(item)]
    part = config.getoption("--part")
    if part:
        chosen = part_of({_file(item.nodeid) for item in kept}, part)
        kept = [item for item in kept if _file(item.nodeid) in chosen]
    if len(kept) < len(items):
        remaining = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in remaining])
    seed = config.getoption("--shuffle")
    items[:] = longest_first(kept, recorded_costs()) if seed is None else shuffled(kept, seed)


def longest_first(items, recorded):
    """Return the tests with those of the slowest files first, so that no worker waits alone at the end."""
    return sorted(items, key=lambda item: -recorded.get(_file(item.nodeid), {}).get("wall_s", 0.0))


def shuffled(items, seed):
    """Return the tests in a random order that keeps those of a file together."""
    files = [list(tests) for _, tests in itertools.groupby(items, key=lambda item: _file(item.nodeid))]
    chance = random.Random(seed)  # noqa: S311 - an order, not a secret
    chance.shuffle(files)
    for tests in files:
        if not any(map(_shares_a_fixture, tests)):
            chance.shuffle(tests)
    return [item for tests in files for item in tests]


def _shares_a_fixture(item):
    """Return whether a test uses a fixture of its module: such tests may follow one another."""
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(each[-1].scope in {"class", "module", "package"} for each in definitions)


def _is_long(item):
    return item.get_closest_marker("long") is not None


def cpu_s():
    """Return the CPU seconds of this process, of the children that it has waited for, and of the running processes that fork programs."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return running_cpu_s() + sum(usage.ru_utime + usage.ru_stime for usage in both)


def loop_s():
    """Return the CPU seconds of a fixed loop of 3,000,000 steps, by a tenth of it: the cost as a multiple can be compared between machines."""
    before = time.process_time()
    assert sum(number & 7 for number in range(300_000)) > 0
    return 10 * (time.process_time() - before)


class _Meter:
    """Measures the CPU seconds of this process since the last report."""

    def __init__(self):
        self._last_s = cpu_s()

    def take_s(self):
        last_s, self._last_s = self._last_s, cpu_s()
        return self._last_s - last_s


_METER = _Meter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Send the CPU seconds of each phase with its report."""
    report = yield
    others = [pair for pair in report.user_properties if pair[0] != _CPU_S]
    report.user_properties = [*others, (_CPU_S, _METER.take_s())]
    return report


def pytest_configure(config):
    """Refuse tests that do not exist and sum the cost, in the process that prints the summary: a worker of xdist has a `workerinput`."""
    if not hasattr(config, "workerinput"):
        for words in config.args:
            refuse_missing(words, config.invocation_params.dir)
        config.pluginmanager.register(_Cost(config), "cost")


def refuse_missing(words, folder):
    """Raise UsageError for a file, a folder, or a test such as `tests/a.py::test_b[c]` that does not exist: a worker fails without a word."""
    name, *tests = words.partition("[")[0].split("::")
    path = folder / name
    if not path.exists():
        raise pytest.UsageError(f"{name} does not exist; name a file or folder of tests, for example tests/planning.")
    # A class may inherit its tests, so only the first name has to be in the file.
    if tests and not re.search(rf"\b{re.escape(tests[0])}\b", path.read_text(encoding="utf-8")):
        raise pytest.UsageError(f"{name} has no test {tests[0]}.")


def recorded_costs():
    """Return the recorded cost of each file; empty if none is recorded."""
    return json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {}


def growth(costs, recorded):
    """Return the files that cost more than recorded, in fixed loops, the largest growth first, and what each cost before."""
    before = {name: row["loops"] for name, row in recorded.items()}
    grown = [(loops - before.get(name, 0), name) for name, loops in costs.items() if loops > before.get(name, 0)]
    return [(by, name, before.get(name, 0)) for by, name in sorted(grown, reverse=True)]


def recorded_rows(files, wall_s, recorded):
    """Return the rows to record. A file keeps its reason as long as it needs one."""
    rows = {}
    for name, loops in sorted(files.items()):
        if round(loops) >= 1:
            rows[name] = {"loops": round(loops, 1), "wall_s": round(wall_s[name], 1)}
        if loops > LOOPS_WITHOUT_REASON and "reason" in recorded.get(name, {}):
            rows[name]["reason"] = recorded[name]["reason"]
    return rows


def unexplained(recorded):
    """Return the files that cost so much that a reason has to be recorded, and have none."""
    return [name for name, row in recorded.items() if row["loops"] > LOOPS_WITHOUT_REASON and not row.get("reason")]


def not_judged(reasons):
    """Return a line about skipped tests, by their reasons: `WHAT: WHY: run `COMMAND``, or a reason without a command. Empty without a reason."""
    parts = []
    for reason, count in Counter(reasons).most_common():
        found = re.fullmatch(r"(?s)([^:]+): .*?(`[^`]+`)", reason)
        parts.append(f"{found[1]} ({count}): {found[2]}" if found else f"{reason} ({count})")
    return f"not judged here: {'; '.join(parts)}" if parts else ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Print last what the skipped tests did not judge."""
    result = yield
    skipped = terminalreporter.stats.get("skipped", [])
    line = not_judged(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if line:
        terminalreporter.write_line(line)
    return result


class _Cost:
    """Cost of the suite: CPU seconds, and fixed loops in all and by file."""

    def __init__(self, config):
        self.config, self.budget = config, config.getoption("--budget")
        self.cpu, self.wall = Counter(), Counter()
        self.loops_s = []
        """CPU seconds of the fixed loop, measured while the tests run: other load slows the loop and the tests alike."""
        self.reports = itertools.count()
        self.whole_s, self.loops, self.files = 0.0, 0.0, {}

    def pytest_runtest_logreport(self, report):
        """Sum by file."""
        file, of_subtest = _file(report.nodeid), isinstance(report, pytest.SubtestReport)
        self.cpu[file] += dict(report.user_properties).get(_CPU_S, 0.0)
        self.wall[file] += 0.0 if of_subtest else report.duration  # a subtest's time is part of its test's
        if next(self.reports) % _REPORTS_PER_LOOP == 0:
            self.loops_s.append(loop_s())
            _METER.take_s()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        """Fail beyond the budget, when all workers have ended; write the record if that is requested."""
        each_s, self.whole_s = statistics.median(self.loops_s or [loop_s()]), cpu_s()
        self.loops, self.files = self.whole_s / each_s, {name: file_s / each_s for name, file_s in self.cpu.items()}
        if self.is_beyond_budget() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.config.getoption("--record-cost"):
            rows = recorded_rows(self.files, self.wall, recorded_costs())
            COSTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter):
        """Print the files that took longest and the whole cost, and beyond the budget the files that grew."""
        terminalreporter.section("cost")
        for name, wall_s in self.wall.most_common(SHOWN_FILES):
            terminalreporter.write_line(f"{wall_s:7.1f} s {self.cpu[name]:7.1f} CPU s  {name}")
        terminalreporter.write_line(
            f"{self.whole_s / 60:.1f} CPU minutes, {self.loops:,.0f} times a fixed loop; processes that no test waited for are not counted"
        )
        if self.is_beyond_budget():
            terminalreporter.write_line(
                f"The suite costs {self.loops:,.0f} fixed loops; the budget is {self.budget:,}. Files that grew:"
            )
            for by, name, before in growth(self.files, recorded_costs())[:SHOWN_FILES]:
                terminalreporter.write_line(f"{by:+7.0f} loops, {before:.0f} recorded  {name}")

    def is_beyond_budget(self):
        return self.budget is not None and self.loops > self.budget


def _file(nodeid):
    return nodeid.partition("::")[0]
