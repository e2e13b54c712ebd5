"""Call functions in parallel. The threads are daemons, so Ctrl-C exits the command while calls are in progress."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def each(tasks: Sequence[Callable[[], T]], *, workers: int) -> Sequence[T]:
    """Return all results in order. Raises the first error, after which no further function starts."""
    return [*in_order(tasks, workers=workers, ahead=len(tasks))]


def each_within(
    tasks: Sequence[Callable[[], T]],
    *,
    workers: int,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Sequence[tuple[T | None, BaseException | None]]:
    """Return the result or error of each function, in order: TimeoutError after `limit_s` seconds of `clock`."""
    deadline_s = clock() + limit_s
    ended = _ended(tasks, workers, threading.Semaphore(len(tasks)), lambda: max(deadline_s - clock(), 0.0))
    found = {index: (value, error) for index, value, error in ended}
    late = (None, TimeoutError(f"no response within {limit_s:.0f} s"))
    return [found.get(index, late) for index in range(len(tasks))]


def in_order(tasks: Sequence[Callable[[], T]], *, workers: int, ahead: int) -> Iterator[T]:
    """Yield the results in order. Raises the first error immediately. Closing the iterator starts no further function.

    At most `ahead` functions are started and not yet yielded, so results do not fill the memory.
    """
    room = threading.Semaphore(ahead)
    early = dict[int, T | None]()
    following = 0
    for index, value, error in _ended(tasks, workers, room, lambda: None):
        if error is not None:
            raise error
        early[index] = value
        while following in early:
            yield early.pop(following)  # pyright: ignore[reportReturnType] - a task without an error has returned its value
            following += 1
            room.release()


def _ended(
    tasks: Sequence[Callable[[], T]], workers: int, room: threading.Semaphore, wait_s: Callable[[], float | None]
) -> Iterator[tuple[int, T | None, BaseException | None]]:
    """Yield index, value and error of each function as it finishes, until none finishes within `wait_s`."""
    done: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()
    waiting = iter(range(len(tasks)))
    stopped = threading.Event()
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
                done.put((index, tasks[index](), None))
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                done.put((index, None, error))

    for number in range(min(workers, len(tasks))):
        threading.Thread(target=work, name=f"call-{number}", daemon=True).start()
    try:
        for _ in tasks:
            yield done.get(timeout=wait_s())
    except queue.Empty:
        return
    finally:
        stopped.set()
        room.release()
