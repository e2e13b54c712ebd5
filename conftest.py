"""What every suite that is run from here shares, the packages' suites too: its cost and budget, its examples, its processes.

A package's suite also runs alone, from its own folder, with its own pyproject.toml.
"""

import os
import signal
import sys

from hypothesis import settings

pytest_plugins = ["pytester", "tests.suite", "tests.engine.warm"]

# A property's example may take long on a busy machine; what it says does not depend on that.
# Before a commit and in continuous integration the examples are the same each time, so that a failure belongs to the change. New ones at night.
settings.register_profile("project", deadline=None, derandomize=True)
settings.register_profile(
    "part", deadline=None, derandomize=True
)  # the long suite in continuous integration: one part a run, in minutes
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile("project")


def pytest_configure() -> None:
    """Prepare this process and what it starts."""
    keep_compiled_modules()
    take_interrupts()


def keep_compiled_modules() -> None:
    """Let Python keep what it compiles, whatever the environment says: the suite starts about a thousand interpreters, and each would compile the project."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def take_interrupts() -> None:
    """Let Ctrl-C and a hang-up reach what the tests start: a suite that a shell or `nohup` runs in the background would pass on that they are ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # The suite itself goes on; a handler is not passed on, as ignoring is.
        signal.signal(signal.SIGHUP, lambda *_: None)
