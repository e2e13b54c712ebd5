"""How the suite is divided, and what it costs: parts of the long suite, CPU seconds by file, and the whole as a multiple of a fixed loop."""

import gc
import re
import resource
import time
from collections import Counter

import pytest

SHOWN_FILES = 10
FIRST = ("tests/engine/", "tests/vm_agent/", "packages/loadtest/tests/", "tests/agreement/test_provider_engine.py")
"""Folders whose tests wait most: their files begin first, so that no worker waits alone at the end."""
_CPU_S = "cpu_s"
_CPU: Counter[str] = Counter()
_WALL: Counter[str] = Counter()
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
    """Send the CPU seconds of each phase with its report."""
    report = yield
    others = [pair for pair in report.user_properties if pair[0] != _CPU_S]
    report.user_properties = [*others, (_CPU_S, _METER.take_s())]
    return report


def pytest_runtest_logreport(report):
    """Sum by file, in the process that prints the summary."""
    _CPU[_file(report.nodeid)] += dict(report.user_properties).get(_CPU_S, 0.0)
    of_subtest = isinstance(report, pytest.SubtestReport)  # its time is part of its test's
    _WALL[_file(report.nodeid)] += 0.0 if of_subtest else report.duration


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Send what a worker has spent, its collection included."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_CPU_S] = cpu_s()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _WORKERS.append(getattr(node, "workeroutput", {}).get(_CPU_S, 0.0))


def pytest_terminal_summary(terminalreporter):
    """Print the files that took longest, and the whole cost."""
    spent_s = max(cpu_s(), sum(_WORKERS))  # workers that have ended count among our children
    terminalreporter.section("cost")
    for name, wall_s in _WALL.most_common(SHOWN_FILES):
        terminalreporter.write_line(f"{wall_s:7.1f} s {_CPU[name]:7.1f} CPU s  {name}")
    terminalreporter.write_line(
        f"{spent_s / 60:.1f} CPU minutes, {spent_s / calibration_s():,.0f} times a fixed loop; children that nobody waited for are not counted"
    )


def _file(nodeid):
    return nodeid.partition("::")[0]
