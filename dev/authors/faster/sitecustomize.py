"""Clocks as fast as the demo's simulated servers: VLLM_SIM_SPEED seconds pass in each real one.

Python imports this file at the start of each process that has this folder on PYTHONPATH.
"""

import os
import selectors
import time
from collections.abc import Callable
from typing import Final

SPEED: Final = float(os.environ.get("VLLM_SIM_SPEED", "1"))


def _faster(clock: Callable[[], float]) -> Callable[[], float]:
    return lambda: clock() * SPEED


class _Selector(selectors.DefaultSelector):
    """Waits of asyncio."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout and timeout / SPEED)


_sleep = time.sleep
time.sleep = lambda seconds, /: _sleep(float(seconds) / SPEED)
time.monotonic, time.perf_counter = _faster(time.monotonic), _faster(time.perf_counter)
selectors.DefaultSelector = _Selector
