"""An event loop whose clock does not wait: when nothing is ready it moves on to the next timer. Hours pass in milliseconds."""

import asyncio
import selectors


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for the timeout it moves the loop's clock by it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing is left that could happen"
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop: `time()` is virtual, and so is each `asyncio.sleep` and `asyncio.timeout`."""

    def __init__(self) -> None:
        self.clock = _JumpingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now_s
