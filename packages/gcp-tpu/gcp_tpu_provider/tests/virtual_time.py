"""An event loop whose clock does not wait: when nothing is ready it moves on to the next timer. Hours pass in milliseconds."""

import asyncio
import selectors
from dataclasses import dataclass


@dataclass
class VirtualClock:
    """Virtual seconds. Several loops, one after another, may move the same clock."""

    now_s: float = 0.0


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for the timeout it moves the clock by it."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing is left that could happen"
            self.clock.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop: `time()` is virtual, and so is each `asyncio.sleep` and `asyncio.timeout`."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        super().__init__(_JumpingSelector(self.clock))

    def time(self) -> float:
        return self.clock.now_s
