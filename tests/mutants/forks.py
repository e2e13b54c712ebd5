"""Forks that judge mutants: of a process that has collected the tests, or of one that has not imported the changed modules."""

import builtins
import faulthandler
import functools
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder, SourceFileLoader
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import Phase, settings

from tests.mutants.changes import SWITCH, switched
from tests.suite import cpu_s

ROOT: Final = Path(__file__).resolve().parents[2]
_OPTIONS: Final = [
    *("-c", "pyproject.toml", "-s", "-o", "timeout=0", "-m", "not engine"),
    *("-qq", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-p", "no:cost"),
]
_MEMORY: Final = 4 << 30
"""Bytes of a fork's data, because a change can make a loop endless."""


_SLEEP_S: Final = 30.0
"""Seconds for which a test may sleep in all, in pauses of half a second or more: a change can make it wait for real. Load does not make them longer."""


@dataclass(slots=True, eq=False)
class Sleep:
    """Replacement of `time.sleep`, which ends a test that waits for real. A field of a dataclass may have it as its default."""

    before: Callable[[float], None]
    slept_s: float = 0.0

    def __call__(self, seconds: float) -> None:
        """Sleep. Raises AssertionError after the limit."""
        self.slept_s += seconds if seconds >= 0.5 else 0.0
        assert self.slept_s <= _SLEEP_S, "The test waits for real."
        self.before(seconds)


@dataclass(slots=True)
class Switch:
    """Builtin that answers whether a change is made, and remembers the changes and modules that it was asked about."""

    made: int | None = None
    reached: set[int | str] = field(default_factory=set)

    def __call__(self, number: int | str) -> bool:
        """Answer about a change, or about a module, which is none."""
        self.reached.add(number)
        return number == self.made


class _Loader(SourceFileLoader):
    def get_code(self, fullname):
        return compile(switched(ROOT, *SWITCHED[fullname]), self.path, "exec", dont_inherit=True)


SWITCHED: dict[str, tuple[str, Mapping[int, int]]] = {}
"""The file of each module that is loaded with switches, and their numbers by their places in it."""


class _Finder:
    def find_spec(self, fullname, path=None, target=None):
        spec = PathFinder.find_spec(fullname, path) if fullname in SWITCHED else None
        if spec is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


def name_of(file: str) -> str:
    """Return the name by which the tests import a module."""
    name = file.removesuffix(".py").removeprefix("packages/gcp-tpu/").replace("/", ".")
    return name if name.startswith(("gemma_serving.", "gcp_tpu_provider.")) else f"gemma_serving.{name}"


class _Plugin:
    """Does some work instead of running all tests."""

    def __init__(self, work):
        self.work, self.result = work, None

    def pytest_configure(self):
        """Do not look for the smallest example of a law that fails."""
        settings.register_profile("project", settings.get_profile("project"), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("project")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        self.result = self.work(session)
        return True


def collected(tests: Iterable[str], work: Callable[[pytest.Session, Switch], Any], made: int | None = None) -> Any:
    """Load the modules with switches, collect tests, and return the result of `work`; None if the tests cannot be collected."""
    switch = Switch(made)
    setattr(builtins, SWITCH, switch)
    time.sleep = Sleep(time.sleep)
    sys.meta_path.insert(0, _Finder())
    for name in SWITCHED:
        importlib.import_module(name)
    plugin = _Plugin(lambda session: None if session.testsfailed else work(session, switch))
    pytest.main([*_OPTIONS, *tests], plugins=[plugin])
    return plugin.result


@functools.cache
def _caches():
    """Return the caches of functions, which hide what a test reaches, and what a change does."""
    gc.unfreeze()
    every = [each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper)]
    gc.freeze()
    return [each for each in every if each.__module__.startswith(("gemma_serving.", "gcp_tpu_provider.", "tests."))]


def _forget():
    for cache in _caches():
        cache.cache_clear()


def _run(items):
    """Run tests, and yield each as it ends."""
    for item, following in pairwise([*items, None]):
        time.sleep.slept_s = 0.0
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item


def measured(session, items, switch):
    """Run tests of one file. Return of each its name, CPU seconds, seconds, whether it passed, and what it reached."""
    rows, before_s, began_s, failed = [], cpu_s(), time.monotonic(), 0
    _forget()
    switch.reached.clear()
    for item in _run(items):
        passed, took_s = session.testsfailed == failed, time.monotonic() - began_s
        rows.append((item.nodeid, cpu_s() - before_s, took_s, passed, list(switch.reached)))
        before_s, began_s, failed = cpu_s(), time.monotonic(), session.testsfailed
        _forget()
        switch.reached.clear()
    return rows


def judged(session, items, switch, made):
    """Run tests with a change. Return the first that fails, or an empty text."""
    _forget()
    switch.made, last = made, ""
    try:
        for item in _run(items):
            if session.testsfailed:
                return item.nodeid
            last = item.nodeid
    except BaseException as error:  # noqa: BLE001 - one that ends pytest
        return f"{type(error).__name__} after {last}"
    return ""


@dataclass(frozen=True, slots=True)
class Job:
    """Work for a fork, and the CPU seconds and seconds that it takes without a change."""

    name: Any
    work: Callable[[], Any]
    cpu_s: float
    took_s: float


def in_forks(jobs: Iterable[Job], workers: int) -> Iterator[tuple[Any, Any, float]]:
    """Do each job in a fork, `workers` at a time. Yield its name, its result, None if it did not end by itself, and its CPU seconds."""
    running = dict[int, Any]()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        try:
            for job in jobs:
                if len(running) == workers:
                    yield _ended(running, Path(folder))
                pid = os.fork()
                if not pid:
                    _do(job, Path(folder) / str(os.getpid()))
                running[pid] = job.name
            while running:
                yield _ended(running, Path(folder))
        finally:
            for pid in running:
                os.kill(pid, signal.SIGKILL)


def _ended(running: dict[int, Any], folder: Path) -> tuple[Any, Any, float]:
    pid, _, usage = os.wait4(-1, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    result = folder / str(pid) / "result"
    found = json.loads(result.read_text()) if result.exists() else None
    shutil.rmtree(folder / str(pid), ignore_errors=True)
    return running.pop(pid), found, usage.ru_utime + usage.ru_stime


def _do(job: Job, folder: Path) -> None:
    """Write the result of a job, and end the process. Its limits leave no result, because a busy machine must not decide."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    folder.mkdir()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(20 + 10 * job.cpu_s),) * 2)
    faulthandler.dump_traceback_later(60 + 5 * job.took_s, exit=True, file=null)
    try:
        (folder / "part").write_text(json.dumps(job.work()))
        (folder / "part").rename(folder / "result")
    finally:
        os._exit(0)
