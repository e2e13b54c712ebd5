"""Shared by every suite that runs from here, including the packages' suites: cost and budget, examples, processes.

A package's suite also runs alone, from its own folder, with its own pyproject.toml.
"""

import os
import signal
import sys
import tempfile

from hypothesis import settings

pytest_plugins = ["pytester", "tests.engine.warm", "tests.suite"]

# A property's example may take long on a busy machine without affecting its result.
# Before a commit and in continuous integration the examples are always the same, so a failure belongs to the change. New ones run at night.
settings.register_profile("project", deadline=None, derandomize=True, max_examples=40)
settings.register_profile(
    "part", deadline=None, derandomize=True, max_examples=200
)  # the long suite in continuous integration: one part per run, in minutes
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile("project")


def pytest_configure() -> None:
    """Prepare this process and its children."""
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="gemma-tests-")  # no test writes into a home
    keep_compiled_modules()
    take_interrupts()


def keep_compiled_modules() -> None:
    """Allow Python to cache compiled modules, because the suite starts about a thousand interpreters, and each compiles the project otherwise."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.pop("COLUMNS", None)  # of the workers' terminal: a pipe otherwise has that width
    sys.dont_write_bytecode = False


def take_interrupts() -> None:
    """Deliver Ctrl-C and hang-ups to test processes: a suite started in the background by a shell or `nohup` passes on that they are ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # The suite itself continues. A handler is not inherited, while ignoring is.
        signal.signal(signal.SIGHUP, lambda *_: None)
