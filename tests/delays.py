"""Random delays where threads, processes and calls in threads start: `pytest -p tests.delays FILES` finds what depends on their order.

DELAYS_SEED repeats a run, DELAYS_MOST_S is the longest delay. A machine that is busy has the same orders, but seldom.
"""

import asyncio
import concurrent.futures
import functools
import os
import random
import subprocess
import sys
import threading
import time

SEED = int(os.environ.get("DELAYS_SEED", "0")) or random.randrange(1, 1 << 30)  # noqa: S311 - delays
MOST_S = float(os.environ.get("DELAYS_MOST_S", "0.3"))
_RANDOM = random.Random(SEED)  # noqa: S311 - delays
_SLEEP = time.sleep  # tests replace it


def pause(share=0.5):
    """Wait for a moment in a share of the calls."""
    if _RANDOM.random() < share:
        _SLEEP(_RANDOM.random() * MOST_S)


def late(start, share=0.5):
    """Return the function with a pause before it."""

    @functools.wraps(start)
    def later(*arguments, **options):
        pause(share)
        return start(*arguments, **options)

    return later


def pytest_configure():
    """Delay what starts from now on, and let threads take turns often."""
    sys.setswitchinterval(1e-4)
    threading.Thread.run = late(threading.Thread.run)
    subprocess.Popen.__init__ = late(subprocess.Popen.__init__)
    submit, to_thread = concurrent.futures.ThreadPoolExecutor.submit, asyncio.to_thread
    concurrent.futures.ThreadPoolExecutor.submit = lambda self, work, *arguments, **options: submit(
        self, late(work, 0.2), *arguments, **options
    )
    asyncio.to_thread = lambda work, *arguments, **options: to_thread(late(work), *arguments, **options)


def pytest_report_header():
    """Say how to repeat the run."""
    return f"delays: DELAYS_SEED={SEED}"
