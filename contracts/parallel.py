"""Call functions in parallel, with a limit on concurrency."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def each(tasks: Sequence[Callable[[], T]], *, workers: int) -> Sequence[T]:
    """Return the results of all functions, in order. Raises the first error.

    The threads are daemons, so Ctrl-C exits the command while calls are in progress.
    """
    found = dict(_values(_ended(tasks, workers, lambda: None)))
    return [found[index] for index in range(len(tasks))]


def each_in_time(
    tasks: Sequence[Callable[[], T]], *, workers: int, remaining_s: Callable[[], float]
) -> Sequence[T | None]:
    """Return the results of all functions, in order, or None for those that were late. Raises the first error.

    `remaining_s` is called before each wait for the next function.
    """
    found = dict(_values(_ended(tasks, workers, lambda: max(remaining_s(), 0.0))))
    return [found.get(index) for index in range(len(tasks))]


def each_within(
    tasks: Sequence[Callable[[], T]], *, workers: int, limit_s: float
) -> Sequence[tuple[T | None, BaseException | None]]:
    """Return the result or error of each function, in order: TimeoutError after `limit_s` seconds."""
    deadline_s = time.monotonic() + limit_s
    ended = _ended(tasks, workers, lambda: max(deadline_s - time.monotonic(), 0.0))
    found = {index: (value, error) for index, value, error in ended}
    late = (None, TimeoutError(f"no answer within {limit_s:.0f} s"))
    return [found.get(index, late) for index in range(len(tasks))]


def in_order(tasks: Sequence[Callable[[], T]], *, workers: int, ahead: int) -> Iterator[T]:
    """Yield the results in order, each as soon as all earlier ones are available. Raises the first error immediately.

    At most `ahead` functions are started and not yet yielded, so results do not fill the memory. Closing the iterator
    starts no further function.
    """
    ended: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()
    waiting, room, stopped = iter(range(len(tasks))), threading.Semaphore(ahead), threading.Event()
    lock = threading.Lock()

    def work() -> None:
        while True:
            room.acquire()
            with lock:
                index = None if stopped.is_set() else next(waiting, None)
            if index is None:
                room.release()  # for the other threads, which exit too
                return
            try:
                ended.put((index, tasks[index](), None))
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                ended.put((index, None, error))

    for number in range(min(workers, len(tasks))):
        threading.Thread(target=work, name=f"ordered-{number}", daemon=True).start()
    early = dict[int, T | None]()
    try:
        for index in range(len(tasks)):
            while index not in early:
                number, value, error = ended.get()
                if error is not None:
                    raise error
                early[number] = value
            yield early.pop(index)  # pyright: ignore[reportReturnType] - a task without an error has returned its value
            room.release()
    finally:
        stopped.set()
        room.release()


def _values(ended: Iterator[tuple[int, T | None, BaseException | None]]) -> Iterator[tuple[int, T]]:
    """Yield index and value of each function as it finishes. Raises the first error."""
    for index, value, error in ended:
        if error is not None:
            raise error
        yield index, value  # pyright: ignore[reportReturnType] - a task without an error has returned its value


def _ended(
    tasks: Sequence[Callable[[], T]], workers: int, wait_s: Callable[[], float | None]
) -> Iterator[tuple[int, T | None, BaseException | None]]:
    """Yield index, value and error of each function as it finishes, until none finishes within `wait_s`."""
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
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                done.put((index, None, error))

    for number in range(min(workers, len(tasks))):
        threading.Thread(target=work, name=f"call-{number}", daemon=True).start()
    for _ in tasks:
        try:
            yield done.get(timeout=wait_s())
        except queue.Empty:  # noqa: PERF203 - each wait times out separately
            return
