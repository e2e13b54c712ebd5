"""Startup probes of Cloud Run: the default probe of a stack, and when it detects a ready server."""

import math
from typing import Final

from planning.machine.hardware import CLOUD_RUN_MAX_GPU_PROBE_S, CLOUD_RUN_MAX_INITIAL_DELAY_S
from planning.question.types import StartupProbe

PROBE_PERIOD_S: Final = 10
"""Time between probes, and so the maximum delay for a ready server. 180 of them fill the 1,800 s that Cloud Run allows."""
PROBE_TIMEOUT_S: Final = 5
"""Below the period, because one sentence of the API requires less and another allows equal. A running server answers /health immediately."""

PROMPT_PROBE: Final = StartupProbe(
    initial_delay_s=0,
    period_s=PROBE_PERIOD_S,
    failure_threshold=CLOUD_RUN_MAX_GPU_PROBE_S // PROBE_PERIOD_S,
    timeout_s=PROBE_TIMEOUT_S,
)
"""Detects a server within one period of its start, and waits 1,800 s for it."""
LONGEST_PROBE: Final = StartupProbe(
    initial_delay_s=CLOUD_RUN_MAX_INITIAL_DELAY_S,
    period_s=PROBE_PERIOD_S,
    failure_threshold=CLOUD_RUN_MAX_GPU_PROBE_S // PROBE_PERIOD_S,
    timeout_s=PROBE_TIMEOUT_S,
)
"""Cloud Run's maximum with a GPU, 2,040 s. It detects no server before 240 s."""


def default_probe(start_with_margin_s: float) -> StartupProbe:
    """Return the default probe of a stack: the prompt one if the start and its margin fit in it, otherwise the longest.

    A probe only as long as the estimate would fail starts that are slower than expected.
    """
    return PROMPT_PROBE if start_with_margin_s <= PROMPT_PROBE.budget_s else LONGEST_PROBE


def seen_after_s(probe: StartupProbe, start_s: float) -> float:
    """Return when a probe detects a server that is ready after `start_s`: at its first attempt from then on."""
    waited_s = max(0.0, start_s - probe.initial_delay_s)
    return probe.initial_delay_s + math.ceil(waited_s / probe.period_s) * probe.period_s
