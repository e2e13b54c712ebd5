"""How the suite is divided, and what it costs: parts of the long suite, CPU seconds by file, the whole as a multiple of a fixed loop, and a budget."""

import gc
import re
import resource
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

SHOWN_FILES = 10
CASES, COMMANDS, STARTS, COLD = "test cases", "engine commands", "program starts", "cold program starts"
"""What decides the time of `make test`: CONTRIBUTING.md says how many there may be of each."""
_KINDS = (CASES, COMMANDS, STARTS, COLD)
PRODUCT, PACKAGES = "product", "packages"
"""The two budgets: the suite of `tests/`, and those of `packages/` together."""
BUDGET_PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
FIRST = ("tests/engine/", "tests/vm_agent/", "packages/loadtest/tests/", "tests/agreement/test_provider_engine.py")
"""Folders whose tests wait most: their files begin first, so that no worker waits alone at the end."""
_CPU_S = "cpu_s"
_COUNTED = "counted"
_CPU: Counter[str] = Counter()
_WALL: Counter[str] = Counter()
_HERE: Counter[str] = Counter()
_BY_FILE: defaultdict[str, Counter[str]] = defaultdict(Counter)
_WORKERS: list[float] = []


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage while the tests are collected, as nearly all that is made then stays, and leave it out of later collections of garbage.

    Each would take a second of a processor, and a load generator collects garbage for each point.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        _METER.take_s()  # what collecting took is in the whole, and not the first file's


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
        "--budget",
        metavar="PAGE",
        type=Path,
        default=BUDGET_PAGE,
        help="page with the table of what `make test` may cost (default: CONTRIBUTING.md); `--long` has no budget",
    )


def part_of(files, part):
    """Return the files of a part such as `2/6`. Raises UsageError if there is no such part."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", part)
    number, count = (int(each) for each in found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        raise pytest.UsageError(f"--part is {part}; it has to be K/N with K from 1 to N, for example 2/6.")
    return set(sorted(files)[number - 1 :: count])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep the tests of the suite that was asked for, and of its part; those that wait most come first."""
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
        items[:] = kept
    items.sort(key=lambda item: not _file(item.nodeid).startswith(FIRST))


def _is_long(item):
    return item.get_closest_marker("long") is not None


def cpu_s():
    """Return the CPU seconds of this process and of the children that it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def calibration_s():
    """Return the CPU seconds of a fixed loop: the cost as a multiple of it can be compared between machines."""
    before = time.process_time()
    assert sum(number & 7 for number in range(3_000_000)) > 0
    return time.process_time() - before


def count(what, number=1):
    """Count something that a test did and that decides the time of the suite."""
    _HERE[what] += number


def budget(page):
    """Return how many there may be of each in the product's suite and in the packages', as a page's table says."""
    text = page.read_text()
    rows = {what: re.search(rf"^\| {what} \| ([0-9,]+) \| ([0-9,]+) \|", text, flags=re.MULTILINE) for what in _KINDS}
    return {
        side: {what: int(row[column].replace(",", "")) for what, row in rows.items() if row}
        for column, side in enumerate((PRODUCT, PACKAGES), start=1)
    }


def side_of(file):
    """Return the budget to which a file of tests belongs."""
    return PACKAGES if file.startswith("packages/") else PRODUCT


def excess(counted, allowed, side, page):
    """Return a sentence for each number that is above the table."""
    return [
        f"The tests of the {side} have {counted[what]:,} {what}, and {page.name} allows {most:,}: remove some, or raise the number there and say why."
        for what, most in allowed.items()
        if counted[what] > most
    ]


def _whole(side=None):
    return sum((counted for file, counted in _BY_FILE.items() if side in {None, side_of(file)}), Counter())


class _Meter:
    """Measures the CPU seconds since the last report."""

    def __init__(self):
        self._last_s = cpu_s()

    def take_s(self):
        now = cpu_s()
        spent, self._last_s = now - self._last_s, now
        return spent


_METER = _Meter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Send the CPU seconds of each phase, and what was counted in it, with its report."""
    report = yield
    others = [pair for pair in report.user_properties if pair[0] not in {_CPU_S, _COUNTED}]
    report.user_properties = [*others, (_CPU_S, _METER.take_s()), (_COUNTED, dict(_HERE))]
    _HERE.clear()
    return report


def pytest_runtest_logreport(report):
    """Sum by file, in the process that prints the summary."""
    sent = dict(report.user_properties)
    _CPU[_file(report.nodeid)] += sent.get(_CPU_S, 0.0)
    of_subtest = isinstance(report, pytest.SubtestReport)  # its time is part of its test's
    _WALL[_file(report.nodeid)] += 0.0 if of_subtest else report.duration
    _BY_FILE[_file(report.nodeid)].update({**sent.get(_COUNTED, {}), CASES: report.when == "setup" and not of_subtest})


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Send what a worker has spent, its collection included; fail a session that is above the budget."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_CPU_S] = cpu_s()
    elif _above(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _above(config):
    """Return the sentences about the budget. A part of the suite is below it, so that only too much of the whole fails."""
    page = config.getoption("--budget")
    if config.getoption("--long"):
        return []
    return [
        sentence for side, allowed in budget(page).items() for sentence in excess(_whole(side), allowed, side, page)
    ]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _WORKERS.append(getattr(node, "workeroutput", {}).get(_CPU_S, 0.0))


def pytest_terminal_summary(terminalreporter, config):
    """Print the files that took longest, and the whole cost."""
    spent_s = max(cpu_s(), sum(_WORKERS))  # workers that have ended count among our children
    terminalreporter.section("cost")
    for name, wall_s in _WALL.most_common(SHOWN_FILES):
        terminalreporter.write_line(f"{wall_s:7.1f} s {_CPU[name]:7.1f} CPU s  {name}{_counts(_BY_FILE[name])}")
    for side in (PRODUCT, PACKAGES):
        if _whole(side):
            terminalreporter.write_line(
                f"{side}: {_cpu_of(side):.0f} CPU s in tests; {_counts(_whole(side)).strip(' ()')}"
            )
    terminalreporter.write_line(
        f"{spent_s / 60:.1f} CPU minutes, {spent_s / calibration_s():,.0f} times a fixed loop; children that nobody waited for are not counted"
    )
    for sentence in _above(config):
        terminalreporter.write_line(sentence, red=True)


def _cpu_of(side):
    return sum(spent_s for file, spent_s in _CPU.items() if side_of(file) == side)


def _counts(counted):
    named = ", ".join(f"{counted[what]:,} {what}" for what in _KINDS if counted[what])
    return f"  ({named})" if named else ""


def _file(nodeid):
    return nodeid.partition("::")[0]
