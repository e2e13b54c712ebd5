"""Wait for what another process, thread or loop does where nothing tells when it is done."""

import time

LIMIT_S = 480
"""Ends a test that would wait for ever. No verdict depends on it: what is waited for takes seconds, and more on a busy machine."""


def until(holds, what="what is waited for", *, process=None, limit_s=LIMIT_S):
    """Wait until something holds, and return it. A `process` must live until then."""
    end_s = time.monotonic() + limit_s
    while not (found := holds()):
        assert process is None or process.poll() is None, f"the process ended with {process.returncode} before {what}"
        assert time.monotonic() < end_s, f"{what} did not happen within {limit_s} s"
        time.sleep(0.02)  # the other side signals nothing
    return found
