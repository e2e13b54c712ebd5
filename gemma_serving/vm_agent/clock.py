"""The agent's clock: the time, the waits that pass it, and the threads that wait.

Modules take it as an argument, so a test can pass another one. Seconds are those of a monotonic clock.
"""

import threading
import time
from collections.abc import Callable


class AgentClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Return the time in seconds since an unknown moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for this time."""
        time.sleep(seconds)

    def wait(self, condition: threading.Condition, timeout_s: "float | None" = None) -> bool:
        """Wait until another thread notifies the condition, which the caller holds. Return False after `timeout_s`."""
        return condition.wait(timeout_s)

    def wait_for(self, condition: threading.Condition, holds: "Callable[[], bool]", timeout_s: float) -> bool:
        """Wait until something holds, which is checked at each notification of the condition. Return False after `timeout_s`."""
        until = self.now() + timeout_s
        with condition:
            while not holds() and (left_s := until - self.now()) > 0:
                self.wait(condition, left_s)
            return holds()

    def start(self, target: "Callable[..., object]", *arguments: object, name: "str | None" = None) -> threading.Thread:
        """Start a thread, and return it. It does not keep the process alive."""
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        return thread


CLOCK = AgentClock()
