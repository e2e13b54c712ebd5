"""Call functions at the same time, a limited number of them at once."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def each(tasks: Sequence[Callable[[], T]], *, workers: int) -> Sequence[T]:
    """Return what each function returned, in order. Raises the first error of one.

    The threads are daemons, so that Ctrl-C ends the command while calls are under way.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()
    for index in range(len(tasks)):
        waiting.put(index)

    def work() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, tasks[index](), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                done.put((index, None, error))

    for number in range(min(workers, len(tasks))):
        threading.Thread(target=work, name=f"call-{number}", daemon=True).start()
    found: dict[int, T] = {}
    for _ in tasks:
        index, value, error = done.get()
        if error is not None:
            raise error
        found[index] = value  # pyright: ignore[reportArgumentType] - a task without an error has returned its value
    return [found[index] for index in range(len(tasks))]


def each_within(
    tasks: Sequence[Callable[[], T]], *, workers: int, limit_s: float
) -> Sequence[tuple[T | None, BaseException | None]]:
    """Return what each function returned or raised, in order; TimeoutError for those that have not ended after `limit_s` seconds."""
    found: dict[int, tuple[T | None, BaseException | None]] = {}
    ended = threading.Condition()
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(tasks)):
        waiting.put(index)

    def work() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            answer: tuple[T | None, BaseException | None]
            try:
                answer = (tasks[index](), None)
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                answer = (None, error)
            with ended:
                found[index] = answer
                ended.notify_all()

    for number in range(min(workers, len(tasks))):
        threading.Thread(target=work, name=f"ask-{number}", daemon=True).start()
    deadline_s = time.monotonic() + limit_s
    late = TimeoutError(f"no answer within {limit_s:.0f} s")
    with ended:
        # In short waits: Ctrl-C is seen between them.
        while len(found) < len(tasks) and (left_s := deadline_s - time.monotonic()) > 0:
            ended.wait(min(left_s, 0.5))
        return [found.get(index, (None, late)) for index in range(len(tasks))]
