"""Progress of a batch on stderr: a bar on a terminal, lines otherwise."""

import sys
import time
from typing import Final, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from planning.units import duration
from scripts.batch.report import BatchReport
from scripts.cli.command import say
from scripts.cli.tables import console

LINE_PERIOD_S: Final = 10.0


class BatchProgress:
    """Reports the counts of a run, as a context."""

    def __init__(self, report: BatchReport) -> None:
        self._report = report
        self._said_s = self._began_s = time.monotonic()
        self._bar = _bar() if sys.stderr.isatty() else None
        self._task = self._bar and self._bar.add_task("batch", total=report.requests, completed=report.stored, rate="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self) -> None:
        """Show the counts."""
        report = self._report
        rate = "" if report.output_tok_per_s is None else f"{report.output_tok_per_s:,.0f} tokens/s"
        failures = len(report.refused) + len(report.unanswered)
        failed = f", {failures:,} failed" if failures else ""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=report.stored, rate=f"{rate}{failed}")
        elif time.monotonic() - self._said_s >= LINE_PERIOD_S:
            self._said_s = time.monotonic()
            rates = f", {rate}" if rate else ""
            say("batch", f"{report.stored:,} of {report.requests:,} responses{failed}{rates}{self._remaining()}")

    def _remaining(self) -> str:
        done = self._report.stored - self._report.stored_before
        if not done or not self._report.left:
            return ""
        return f", about {duration((time.monotonic() - self._began_s) / done * self._report.left)} left"


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
    )
