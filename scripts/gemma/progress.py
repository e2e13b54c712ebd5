"""Two lines on a terminal while the engine works: the step, and what it waits for. Elsewhere one line per message."""

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self, TextIO

from contracts.plain_text import for_terminal
from engine.events import EngineProgress

_LONGEST_LINE: Final = 300
_CLEAR_LINE: Final = "\r\x1b[K"
_UP: Final = "\x1b[1A"


def for_line(text: str) -> str:
    """Return a message of the engine as one line that cannot steer the terminal."""
    return for_terminal(text)[:_LONGEST_LINE]


@dataclass(slots=True, kw_only=True)
class TwoLines:
    """Shows progress. As a context, it clears what it drew."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    columns: Callable[[], int] = field(default=lambda: shutil.get_terminal_size((80, 24)).columns)
    _started_s: float = 0.0
    _step: str = ""
    _detail: str = ""
    _is_drawn: bool = False

    def __enter__(self) -> Self:
        """Start the clock."""
        self._started_s = self.clock()
        return self

    def __exit__(self, *_error: object) -> None:
        """Clear both lines."""
        self._clear()
        self.stream.flush()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self.clock() - self._started_s

    def note(self, progress: EngineProgress) -> None:
        """Show one message of the engine."""
        step = progress.step or ""
        if progress.text != step:
            self._detail = progress.text
        elif step != self._step:
            self._detail = ""
        self._step = step
        if not self.stream.isatty():
            print(progress.text, file=self.stream, flush=True)

    def draw(self) -> None:
        """Draw both lines again, with the time; elsewhere than on a terminal, nothing."""
        if not self.stream.isatty():
            return
        self._clear()
        width = max(20, self.columns() - 1)
        minutes, seconds = divmod(int(self.elapsed_s), 60)
        first = f"{minutes}m{seconds:02d}s  {self._step or ('finishing' if self._detail else 'starting')}"
        self.stream.write(f"{_short(first, width)}\n{_short('       ' + self._detail, width)}")
        self.stream.flush()
        self._is_drawn = True

    def _clear(self) -> None:
        if self._is_drawn:
            self.stream.write(f"{_CLEAR_LINE}{_UP}{_CLEAR_LINE}")
            self._is_drawn = False


def _short(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"
