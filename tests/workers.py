"""Run the tests in forks of the process that collected them: `--workers N`.

Every worker has all tests after one collection. It takes a file, runs its tests in their order, and takes the next. Reports go to the first process, which
prints them. A test that did not run because its worker crashed is an error of that test.
"""

import gc
import os
import pickle
import selectors
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass, field
from itertools import groupby

import pytest

_LENGTH = struct.Struct("!I")
"""Frames of both pipes: the number of a file, or the length of a message."""


def pytest_addoption(parser):
    parser.addoption("--workers", type=int, default=1, metavar="N", help="run the files in N forks of this process")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Replace the loop of one process if there are several workers."""
    if session.config.option.workers < 2 or session.config.option.collectonly:
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    if session.items:
        _Parent(session).run()
    return True


def files_of(items):
    """Return the tests of each file, in the order in which the files begin."""
    return [list(tests) for _, tests in groupby(items, key=lambda item: item.nodeid.partition("::")[0])]


def _queue_of(count):
    """Return an open file of all files' numbers. Forks share its position, so each read takes the next."""
    queue = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the caller closes it
    queue.write(b"".join(map(_LENGTH.pack, range(count))))
    queue.seek(0)
    return queue


@dataclass
class _Worker:
    """A fork, as the first process knows it."""

    process_id: int
    pipe: int
    received: bytearray = field(default_factory=bytearray)
    started: str = ""
    """The test that runs now."""

    def messages(self, data):
        """Yield the whole messages that have arrived."""
        self.received += data
        while len(self.received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self.received)[0]
            if len(self.received) < end:
                return
            yield pickle.loads(self.received[_LENGTH.size : end])  # noqa: S301 - from a fork of this process
            del self.received[:end]


class _Parent:
    """The process that collected: it starts the workers and prints what they report."""

    def __init__(self, session):
        self.session, self.hook, self.config = session, session.config.hook, session.config
        self.missing = {item.nodeid: item for item in session.items}
        self.running = []
        self.ends = []
        """One text for each worker that failed, with its exit code and its test."""

    def run(self):
        files = files_of(self.session.items)
        self.config._tmp_path_factory.getbasetemp()  # one folder for all workers
        # Reports of several files alternate, so a line would begin for nearly each.
        self.config.pluginmanager.getplugin("terminalreporter").showfspath = False
        gc.freeze()  # a fork's collector leaves these pages alone, so that they stay shared
        # Python drops an interrupt that arrives in a fork, so it waits until all workers have started.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with _queue_of(len(files)) as queue:
            for _ in range(min(self.config.option.workers, len(files))):
                self._fork(files, queue.fileno())
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self._listen()
        finally:
            self._end_all()
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)
        for item in self.missing.values():
            self._report_lost(item)

    def _fork(self, files, queue):
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        process_id = os.fork()
        if process_id == 0:
            os.close(reading)
            _Child(self.session, files, queue, writing).run()
        os.close(writing)
        self.running.append(_Worker(process_id, reading))

    def _listen(self):
        """Print what the workers report, until all have ended."""
        with selectors.DefaultSelector() as selector:
            for worker in self.running:
                selector.register(worker.pipe, selectors.EVENT_READ, worker)
            while selector.get_map():
                for key, _ in selector.select():
                    worker, data = key.data, os.read(key.fd, 1 << 20)
                    for kind, value in worker.messages(data):
                        self._take(worker, kind, value)
                    if not data:
                        selector.unregister(key.fd)
                        os.close(key.fd)
                        self._end(worker)
                if self.session.shouldfail or self.session.shouldstop:
                    return

    def _end_all(self):
        """End workers that still run, with their fixtures."""
        for worker in self.running:
            os.kill(worker.process_id, signal.SIGINT)
        for worker in [*self.running]:
            os.close(worker.pipe)
            self._end(worker)

    def _end(self, worker):
        self.running.remove(worker)
        _, status = os.waitpid(worker.process_id, 0)
        code = os.waitstatus_to_exitcode(status)
        if code:
            self.ends.append(f"a worker ended with {code}" + (f" in {worker.started}" if worker.started else ""))

    def _take(self, worker, kind, value):
        if kind == "start":
            worker.started = value[0]
            self.hook.pytest_runtest_logstart(nodeid=value[0], location=value[1])
        elif kind == "finish":
            worker.started = ""
            self.missing.pop(value[0], None)
            self.hook.pytest_runtest_logfinish(nodeid=value[0], location=value[1])
        elif kind == "report":
            report = self.hook.pytest_report_from_serializable(config=self.config, data=value)
            self.hook.pytest_runtest_logreport(report=report)
        else:
            message, when, nodeid, location = value
            recorded = warnings.WarningMessage(**message)
            self.hook.pytest_warning_recorded.call_historic(
                kwargs={"warning_message": recorded, "when": when, "nodeid": nodeid, "location": location}
            )

    def _report_lost(self, item):
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=f"{item.nodeid} did not finish: {'; '.join(self.ends)}",
            when="setup",
        )
        self.hook.pytest_runtest_logreport(report=report)


class _Child:
    """A worker, in its own process: it prints nothing itself."""

    def __init__(self, session, files, queue, pipe):
        self.session, self.config = session, session.config
        self.files, self.queue, self.pipe = files, queue, pipe

    def run(self):
        """Run files until none is left; never returns."""
        code = 1
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self._own_streams()
            self.config.pluginmanager.unregister(name="terminalreporter")
            self.config.pluginmanager.register(_Forwarding(self.config, self._send), "forwarding")
            try:
                self._run_files()
            finally:
                self._finish()
            code = 0
        except KeyboardInterrupt:
            code = 130
        except BaseException:  # noqa: BLE001  the first process names the test that was running
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _own_streams(self):
        """Capture into files of its own: those of the first process would have one position for all."""
        capture = self.config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        capture.start_global_capturing()

    def _run_files(self):
        """The next file is taken just before the last test of one, which keeps what both need."""
        tests, following = self._next_file(), None
        while tests:
            for index, item in enumerate(tests):
                is_last = index == len(tests) - 1
                following = self._next_file() if is_last else None
                after = tests[index + 1] if not is_last else following[0] if following else None
                self.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            tests = following

    def _next_file(self):
        number = os.read(self.queue, _LENGTH.size)
        return self.files[_LENGTH.unpack(number)[0]] if number else None

    def _finish(self):
        """End fixtures, and what the project's own plugins started. The other plugins write results, which the first process has."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C comes before that of the first process
        self.session._setupstate.teardown_exact(None)
        plugins = self.config.pluginmanager
        others = [
            plugin
            for name, plugin in plugins.list_name_plugin()
            if plugin is not None and not str(name).startswith("tests.")
        ]
        plugins.subset_hook_caller("pytest_sessionfinish", others)(session=self.session, exitstatus=0)

    def _send(self, kind, value):
        message = pickle.dumps((kind, value))
        data = memoryview(_LENGTH.pack(len(message)) + message)
        while data:
            data = data[os.write(self.pipe, data) :]


class _Forwarding:
    """Sends what a worker would print."""

    def __init__(self, config, send):
        self.config, self.send = config, send

    def pytest_runtest_logstart(self, nodeid, location):
        self.send("start", (nodeid, location))

    def pytest_runtest_logfinish(self, nodeid, location):
        self.send("finish", (nodeid, location))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        self.send("report", self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        names = ("category", "filename", "lineno")
        message = {"message": str(warning_message.message), **{name: getattr(warning_message, name) for name in names}}
        self.send("warning", (message, when, nodeid, location))
