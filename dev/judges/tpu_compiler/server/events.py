"""Events of the judge on its standard output, one JSON object per line; everything that libraries print goes to standard error."""

import json
import os
import sys
import time
from typing import Any, TextIO

_LONGEST_WORDS = 600


class Events:
    """Writes events; knows the stage, and the time since the start."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._start_s = time.monotonic()
        self.current_stage = ""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return round(time.monotonic() - self._start_s, 1)

    def send(self, event: str, **fields: Any) -> None:
        """Write one event."""
        print(json.dumps({"event": event, **fields}), file=self._out, flush=True)

    def stage(self, name: str) -> None:
        """Write that a stage begins."""
        self.current_stage = name
        self.send("stage", name=name, seconds=self.elapsed_s)


def take_standard_output() -> Events:
    """Keep the standard output for events, and send to standard error whatever else is printed, also by C++."""
    own = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return Events(os.fdopen(own, "w"))


def words_of(error: BaseException) -> str:
    """Return an error's own words on one line, cut to a length that a terminal shows."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_WORDS else f"{text[: _LONGEST_WORDS - 3]}..."
