"""Progress of a sweep as lines on stderr."""

import shutil
import sys
import textwrap
import time
from collections.abc import Mapping
from typing import Any, Final

from loadtest.client.plain_text import print_text
from loadtest.traffic.points import Point

LINE_PERIOD_S: Final = 10.0


def outcome(result: Mapping[str, Any]) -> str:
    """Return a point's figures as one line, with the output rate that the plan is compared with."""
    if not result["completed"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in result["errors_by_kind"].items())
        return f"no complete response ({kinds})"
    failed = f", {result['failed']} FAILED" if result["failed"] else ""
    tpot = f", TPOT {result['median_tpot_ms']:.1f} ms" if result["median_tpot_ms"] is not None else ""
    valid = "" if result["valid"] else " INVALID"
    rate = (result.get("steady") or result)["output_throughput"]
    return f"{rate:.1f} tok/s, TTFT {result['median_ttft_ms']:.1f} ms{tpot}{failed}{valid}"


def say(name: str, text: str, command: str = "") -> None:
    """Print one line of a program on stderr, on a terminal wrapped between words; a command at its end stays whole.

    Server text in it cannot control the terminal.
    """
    shown = f"{name}: {text}"
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        shown = textwrap.fill(shown, columns, break_long_words=False, break_on_hyphens=False)
    print_text(f"{shown} {command}" if command else shown, sys.stderr)


class Reporter:
    """Progress as lines on stderr."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._total = self._measured = 0
        self._begin_s = self._said_s = time.monotonic()
        self._point = ""

    def begin(self, points: int) -> None:
        """Start a sweep of `points` points."""
        self._total, self._begin_s = points, time.monotonic()

    def start(self, point: Point) -> None:
        """Start a point."""
        self._point, self._said_s = point.text, time.monotonic()

    def progress(self, finished: int, in_flight: int) -> None:
        """Report the point's requests so far."""
        if time.monotonic() - self._said_s >= LINE_PERIOD_S:
            self._said_s = time.monotonic()
            self.line(f"{self._point}: {finished} done, {in_flight} in flight")

    def done(self, point: Point, result: Mapping[str, Any]) -> None:
        """Report a measured and stored point."""
        self._measured += 1
        self.line(f"[{self._measured}/{self._total}] {point.text}: {outcome(result)}{self._left()}")

    def skipped(self, point: Point, reason: str) -> None:
        """Report a skipped point."""
        self._measured += 1
        self.line(f"[{self._measured}/{self._total}] {point.text}: skipped, {reason}")

    def line(self, text: str) -> None:
        """Report a message."""
        say(self._name, text)

    def _left(self) -> str:
        left = self._total - self._measured
        if not left:
            return ""
        left_s = (time.monotonic() - self._begin_s) / self._measured * left
        return f"; about {left_s / 60:.0f} min left" if left_s > 90 else f"; about {left_s:.0f} s left"  # noqa: PLR2004 - minutes from here on
