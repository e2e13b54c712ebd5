"""Prepare the parts of a document in parallel: its image and its weights."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gemma_serving.vm_agent.base import ServingError, SupersededError, log
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.containers import DISK_FULL

Work = Callable[[Callable[[str], None], Callable[[], bool]], None]
"""A part. Receives the functions `progress` and `cancelled`, and raises SupersededError soon after it was cancelled."""


@dataclass
class Together:
    """Work in parallel, by phase. No work outlives `run`."""

    publish: Callable[[str, str], None]
    """Receives the first phase that is not over, and the progress of all."""
    cancelled: Callable[[], bool]
    report: Callable[[str], None] = log
    """Receives a line with the duration of each part that is done."""
    again_s: float = 2.0
    """Interval between two calls of `publish`, because a publisher drops details that come too soon."""
    clock: AgentClock = CLOCK
    _details: "dict[str, str]" = field(default_factory=dict[str, str])
    """Progress of the phases that are not over."""
    _failures: "list[BaseException]" = field(default_factory=list[BaseException])
    _done: int = 0
    _ends: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, works: "Mapping[str, Work]") -> None:
        """Do all work. After a transient failure the rest is finished, because the next attempt needs it too.

        Raises the first error that is not transient, which ends the rest, or else the first one. Raises SupersededError if it was cancelled.
        """
        problem = self._problem_of(works)
        if problem is not None and len(works) - self._done > 1 and DISK_FULL in str(problem).lower():
            # A pull uses more disk space than its image, so both may fit in sequence.
            log(f"The disk is full, so the document is prepared again, one part after the other: {problem}")
            problems = (self._problem_of({phase: work}) for phase, work in works.items())
            problem = next((one for one in problems if one is not None), None)
        if problem is not None:
            raise problem

    def _problem_of(self, works: "Mapping[str, Work]") -> "BaseException | None":
        """Return the error of this work, or None if all of it is done."""
        self._details, self._failures, self._ends = dict.fromkeys(works, ""), [], False
        self._done = 0
        self._tell(next(iter(works)), "")
        threads = [self.clock.start(self._do, *one) for one in works.items()]
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(self.again_s)
                    self._publish_progress()
        finally:
            self._ends = True  # the agent is stopped, and the files in memory are deleted by their threads
            for thread in threads:
                thread.join()
        found = sorted(self._failures, key=is_transient)
        for error in found[1:]:
            log(f"Beside the error that is reported: {error}")
        return found[0] if found else SupersededError() if self.cancelled() else None

    def _do(self, phase: str, work: "Work") -> None:
        failure, began_s = "", self.clock.now()
        try:
            work(lambda detail: self._tell(phase, detail), lambda: self._ends or self.cancelled())
            self._done += 1
            self.report(f"Done after {self.clock.now() - began_s:.1f} s: {phase}.")
        except SupersededError:
            self._ends = True
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            if not is_transient(error):
                self._ends = True
            self._failures.append(error)
            failure = str(error)
        self._tell(phase, failure, is_over=True)

    def _tell(self, phase: str, detail: str, *, is_over: bool = False) -> None:
        """Publish one part's progress. A part that is over is only mentioned if it failed."""
        with self._lock:
            if is_over:
                del self._details[phase]
            if detail or not is_over:
                self._details[phase] = detail  # last, if it is over
        self._publish_progress()

    def _publish_progress(self) -> None:
        with self._lock:
            first = next(iter(self._details), None)
            if first is not None:
                others = [f"{name}: {text}" for name, text in self._details.items() if name != first and text]
                self.publish(first, "; ".join([self._details[first], *others] if self._details[first] else others))


def is_transient(error: BaseException) -> bool:
    """Return whether an error has a cause outside the document that may end."""
    return isinstance(error, ServingError) and error.retry and bool(error.waits_for or error.denied)
