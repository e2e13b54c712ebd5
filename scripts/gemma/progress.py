"""Two lines on a terminal while the engine works: the step, and what it waits for. Elsewhere one line per message."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final, Self

from contracts.plain_text import for_terminal
from engine.events import EngineProgress

_LONGEST_LINE: Final = 300
_CLEAR_LINE: Final = "\r\x1b[K"
_UP: Final = "\x1b[1A"
_PERIOD_S: Final = 0.2


def for_line(text: str) -> str:
    """Return a message of the engine as one line that cannot steer the terminal."""
    return for_terminal(text)[:_LONGEST_LINE]


@dataclass(slots=True)
class TwoLines:
    """Shows progress on stderr. As a context, it clears what it drew."""

    step: str = "starting"
    detail: str = ""
    _started_s: float = field(default_factory=time.monotonic)
    _is_drawn: bool = False

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Clear both lines."""
        self._clear()
        sys.stderr.flush()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    def note(self, progress: EngineProgress) -> None:
        """Show one message of the engine."""
        step = progress.step or "finishing"
        if progress.text != step:
            self.detail = progress.text
        elif step != self.step:
            self.detail = ""
        self.step = step
        if not sys.stderr.isatty():
            print(progress.text, file=sys.stderr, flush=True)

    def draw(self) -> None:
        """Draw both lines again, with the time; elsewhere than on a terminal, nothing."""
        if not sys.stderr.isatty():
            return
        self._clear()
        width = max(20, shutil.get_terminal_size((80, 24)).columns - 1)
        minutes, seconds = divmod(int(self.elapsed_s), 60)
        sys.stderr.write(_short(f"{minutes}m{seconds:02d}s  {self.step}", width))
        sys.stderr.write(f"\n{_short('       ' + self.detail, width)}")
        sys.stderr.flush()
        self._is_drawn = True

    def _clear(self) -> None:
        if self._is_drawn:
            sys.stderr.write(f"{_CLEAR_LINE}{_UP}{_CLEAR_LINE}")
            self._is_drawn = False


@contextlib.contextmanager
def moving(step: str) -> Generator[None]:
    """Show a step with its time on a terminal until the body ends."""
    ended = threading.Event()
    with TwoLines(step) as lines:

        def draw() -> None:
            while not ended.wait(_PERIOD_S):
                lines.draw()

        thread = threading.Thread(target=draw, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _short(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"
