"""A command in a terminal of a given size, and what a person would see on its screen."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pyte

LIMIT_S = 240
_REFUSED = 2


class Terminal:
    """A process with a terminal of its own. `screen` is what stands there now."""

    def __init__(self, command, *, columns, lines, folder, environment):
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._written = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env={**environment, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines)},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - Ctrl-C becomes a signal; nothing else runs here
        )
        os.close(slave)

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    @property
    def printed(self):
        """The words of a screen on which no row ends early."""
        wide = pyte.Screen(1_000, 200)
        pyte.ByteStream(wide).feed(self._written)
        return " ".join(" ".join(wide.display).split())

    @property
    def unwrapped(self):
        """The screen with each wrapped line as one."""
        return "".join(self.screen.display)

    def line_with(self, words):
        """The first line of the screen with these words, or an empty one."""
        return next((line.rstrip() for line in self.screen.display if words in line), "")

    def until(self, holds, what):
        """Read until `holds` is true of this terminal."""
        end = time.monotonic() + LIMIT_S
        while not holds(self):
            assert time.monotonic() < end, f"{what} was never on the screen:\n{self.text}"
            assert self._read() or self.process.poll() is None, f"the command ended without {what}:\n{self.text}"

    def interrupt(self):
        """Press Ctrl-C, and return the exit code."""
        return self.type("\x03")

    def answer(self, text):
        """Type a text, while the command goes on."""
        os.write(self._master, text.encode())

    def type(self, text):
        """Type a text, and return the exit code."""
        self.answer(text)
        return self.end()

    def end(self):
        """Return the exit code once the command has ended."""
        end = time.monotonic() + LIMIT_S
        while self._read() or self.process.poll() is None:
            assert time.monotonic() < end, f"the command did not end:\n{self.text}"
        return self.process.wait()

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._master)

    def _read(self):
        """Take over what was written; return whether there was anything."""
        ready = (
            select.poll()
        )  # `select.select` knows no descriptor above 1,023, and a worker of the suite may have as many
        ready.register(self._master)
        if not ready.poll(200):
            return False
        try:
            found = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self._stream.feed(found)
        self._written += found
        return bool(found)


@contextlib.contextmanager
def typed(workspace, *command, columns=80, lines=120, environment=None):
    """Type a command into a terminal in the project of a workspace."""
    shown = Terminal(
        command,
        columns=columns,
        lines=lines,
        folder=workspace.folder / "project",
        environment={**workspace.environment, **(environment or {})},
    )
    try:
        yield shown
    finally:
        shown.close()


def take_down(workspace, stack, **options):
    """Run `teardown` in a terminal, and answer yes: without a state, another folder may have made what it finds. Return its receipt."""
    path = workspace.folder / "receipt.json"
    words = ("-m", "scripts.gemma", "teardown", stack, "--yes", "--receipt", str(path))
    with typed(workspace, sys.executable, *words, lines=400, **options) as shown:
        shown.until(lambda one: "Delete them? (yes/no)" in one.printed, "the question")
        assert shown.type("yes\n") == 0, shown.text
    return json.loads(path.read_text())


def come_back(workspace, stack):
    """Run `up`, and answer yes in a terminal where it asks, because a plain `pulumi up` began. Return what it printed."""
    refused = workspace.script("up", "--stack", stack, "--yes", expect=None)
    if refused.code == 0:
        return refused.text
    assert (refused.code, "in a terminal" in refused.err) == (_REFUSED, True), refused.text
    with typed(workspace, sys.executable, "-m", "scripts.gemma", "up", stack, "--yes", lines=400) as shown:
        shown.until(lambda one: "(yes/no)" in one.text, "the question")
        assert shown.type("yes\n") == 0, shown.text
        return shown.text
