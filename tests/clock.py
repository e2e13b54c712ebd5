"""The time of a test whose code runs in threads: it moves to the next deadline only when every registered thread waits for it.

Nothing takes real time. Registered are the thread that makes the clock, and each thread that the clock starts. A thread
that is busy, or reads from a socket, holds the time; so it must not wait for a thread that needs time, except by `join`,
`wait` and `sleep` of this clock, or inside `elsewhere`.
"""

import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

CAP_S = 60.0
"""Real time after which a thread that waits for this clock is told which threads hold the time."""
LOOK_S = 0.002
"""Real time between two looks of a test at its condition, while a thread is busy."""


@dataclass(eq=False)
class _Wait:
    """A thread that waits until the deadline, or until its condition is notified."""

    deadline_s: float
    condition: threading.Condition
    is_due: bool = False


class _Thread(threading.Thread):
    """A registered thread. To join it is to wait for its clock."""

    def __init__(self, clock: "ThreadClock", run: Callable[[], object], name: str | None):
        super().__init__(name=name, daemon=True)
        self._clock, self._work, self._over, self._is_over = clock, run, threading.Condition(), False

    def run(self) -> None:
        try:
            with suppress(SystemExit):
                self._work()
        finally:
            with self._over:
                self._is_over = True
                self._over.notify_all()
            self._clock.leave(self)

    def join(self, timeout: float | None = None) -> None:
        clock = self._clock
        if clock.is_waitable():
            until = clock.now() + (float("inf") if timeout is None else timeout)
            with self._over:
                while not self._is_over and (left_s := until - clock.now()) > 0:
                    clock.wait(self._over, left_s)
            if not self._is_over:
                return
            timeout = None
        super().join(timeout)


class ThreadClock:
    """Virtual seconds for threads. It begins a minute after the boot of a machine."""

    def __init__(self) -> None:
        self._now_s, self._is_closed, self._steps = 60.0, False, 0
        self._threads, self._waits = {threading.current_thread()}, dict[threading.Thread, _Wait]()
        self._main, self._holds = threading.current_thread(), 0
        self._changed = threading.Condition()
        self._due: list[tuple[float, Callable[[], object]]] = []
        self._mover = threading.Thread(target=self._move, name="clock", daemon=True)
        self._mover.start()

    def now(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        own = threading.Condition()
        until = self._now_s + seconds
        with own:
            while self._now_s < until:
                self.wait(own, until - self._now_s)

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait until the condition, which the caller holds, is notified. Return False after `timeout_s`.

        In a thread that is not registered it fails, and it ends a thread whose test is over.
        """
        timeout_s = float("inf") if timeout_s is None else timeout_s
        if timeout_s <= 0:
            return False
        thread = threading.current_thread()
        with self._changed:
            self._end_if_closed()
            assert thread in self._threads, f"{thread.name} is not registered: start it by the clock"
            wait = self._waits[thread] = _Wait(self._now_s + timeout_s, condition)
            self._announce()
        try:
            if not condition.wait(CAP_S):
                raise AssertionError(f"{thread.name} has waited {CAP_S:g} s of real time. {self.holders()}")
        finally:
            with self._changed:
                self._waits.pop(thread, None)
                self._announce()
        self._end_if_closed()
        return not wait.is_due

    def start(self, target: Callable[..., object], *arguments: object, name: str | None = None) -> threading.Thread:
        thread = _Thread(self, lambda: target(*arguments), name or getattr(target, "__qualname__", None))
        with self._changed:
            self._end_if_closed()
            self._threads.add(thread)
            thread.start()  # under the lock: `close` joins every thread that it finds
        return thread

    def at(self, due_s: float, action: Callable[[], object]) -> None:
        """Call an action when this time has come, before a thread sees it."""
        with self._changed:
            self._due.append((due_s, action))

    def until(self, condition: Callable[[], Any], what: str, limit_s: float = 3600.0) -> Any:
        """Let time pass until the condition holds: it is asked before each move. Return its value.

        At its limit the time stands, and real threads get a few seconds more.
        """
        end_s, real_end_s = self._now_s + limit_s, time.monotonic() + CAP_S
        while not (value := condition()):
            is_quiet = self._rest(self._now_s)
            if value := condition():
                return value
            if self._now_s >= end_s:
                real_end_s = min(real_end_s, time.monotonic() + 5.0)
            if time.monotonic() > real_end_s:
                raise AssertionError(f"at {self._now_s:g} s it did not come about that {what}. {self.holders()}")
            if is_quiet and self._now_s < end_s:
                with self._changed:
                    deadlines = [wait.deadline_s for wait in self._waits.values()] + [due_s for due_s, _ in self._due]
                next_s = min(deadlines, default=float("inf"))
                is_quiet = next_s < float("inf") and self._rest(min(next_s, end_s))
            if not is_quiet or self._now_s >= end_s:
                threading.Event().wait(LOOK_S)
        return value

    def _rest(self, deadline_s: float) -> bool:
        """Wait until every other thread waits and the time is this one. Return False if one was busy for `LOOK_S`."""
        own, thread = threading.Condition(), threading.current_thread()
        with own:
            with self._changed:
                wait = self._waits[thread] = _Wait(deadline_s, own)
                self._announce()
            while not own.wait(LOOK_S) and not wait.is_due and self._are_all_waiting():
                pass
            with self._changed:
                self._waits.pop(thread, None)
                self._announce()
        return wait.is_due

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Let the time pass while the calling thread waits for something else, such as an event that another one sets.

        In a thread that is not registered, such as one of a server: while a registered thread waits for its answer.
        """
        thread = threading.current_thread()
        with self._changed:
            is_registered = thread in self._threads
            self._threads.discard(thread)
            self._holds += not is_registered
            self._announce()
        try:
            yield
        finally:
            with self._changed:
                if is_registered:
                    self._threads.add(thread)
                self._holds -= not is_registered
                self._announce()

    def leave(self, thread: threading.Thread) -> None:
        """Let a thread not hold the time any more."""
        with self._changed:
            self._threads.discard(thread)
            self._announce()

    def is_waitable(self) -> bool:
        """Return whether the calling thread can wait for the clock."""
        return threading.current_thread() in self._threads and not self._is_closed

    def holders(self) -> str:
        """Return which threads hold the time, and where they are."""
        frames = _frames()
        busy = [thread for thread in self._threads - set(self._waits) if thread is not threading.current_thread()]
        places = {thread.name: traceback.extract_stack(frames.get(thread.ident or 0), limit=3) for thread in busy}
        said = [f"{name}: {' < '.join(f'{at.name}:{at.lineno}' for at in reversed(at))}" for name, at in places.items()]
        return f"Busy, so the time stands: {'; '.join(said) or 'none'}."

    def close(self) -> None:
        """End every thread at its wait, and wait for their ends."""
        with self._changed:
            self._is_closed = True
            others = self._threads - {threading.current_thread()}
            waits = list(self._waits.values())
            self._announce()
        for wait in waits:
            with wait.condition:
                wait.condition.notify_all()
        for thread in [*others, self._mover]:
            thread.join(CAP_S)
        left = [thread.name for thread in others if thread.is_alive()]
        assert not left, f"{left} did not end with the test. {self.holders()}"

    def _end_if_closed(self) -> None:
        if self._is_closed and threading.current_thread() is not self._main:
            raise SystemExit

    def _are_all_waiting(self) -> bool:
        with self._changed:
            self._announce()  # the mover may have seen this thread between two waits
            return self._is_quiet()

    def _is_quiet(self) -> bool:
        return len(self._waits) + bool(self._holds) >= len(self._threads)

    def _announce(self) -> None:
        self._steps += 1
        self._changed.notify_all()

    def _move(self) -> None:
        """Move the time whenever every registered thread waits for it."""
        seen = -1
        while True:
            with self._changed:
                while not self._is_closed and (self._steps == seen or not self._is_quiet()):
                    self._changed.wait()
                if self._is_closed:
                    return
                seen, waits = self._steps, list(self._waits.values())
            if all(_is_waiting(condition, waits) for condition in {wait.condition for wait in waits}):
                self._step(seen)

    def _step(self, seen: int) -> None:
        with self._changed:
            deadlines = (*(wait.deadline_s for wait in self._waits.values()), *(due_s for due_s, _ in self._due))
            next_s = min(deadlines, default=float("inf"))
            if self._steps != seen or next_s == float("inf"):
                return
            self._now_s = max(self._now_s, next_s)
            actions = [action for due_s, action in self._due if due_s <= self._now_s]
            self._due = [one for one in self._due if one[0] > self._now_s]
            due = [wait for wait in self._waits.values() if wait.deadline_s <= self._now_s]
        for action in actions:
            action()
        for wait in due:
            with wait.condition:
                wait.is_due = True
                wait.condition.notify_all()


def _frames() -> dict[int, FrameType]:
    """Return the frame of each thread. A collection meanwhile can deadlock Python before 3.11.9 (python/cpython#106883)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_on:
            gc.enable()


def _is_waiting(condition: threading.Condition, waits: list[_Wait]) -> bool:
    """Return whether none of the threads at a condition was notified: it runs, though it has not run yet."""
    with condition:
        return len(condition._waiters) >= sum(wait.condition is condition for wait in waits)  # type: ignore[attr-defined]
