"""Startup probes of Cloud Run: which one a stack takes, and when it sees a server that is ready."""

import math
from typing import Final

from planning.machine.hardware import CLOUD_RUN_MAX_GPU_PROBE_S, CLOUD_RUN_MAX_INITIAL_DELAY_S
from planning.question.types import StartupProbe

PROBE_PERIOD_S: Final = 10
"""Time between probes: a server that is ready waits at most that long. 180 of them fill the 1,800 s that Cloud Run allows."""
PROBE_TIMEOUT_S: Final = 5
"""Below the period, because one sentence of the API asks for less and another allows as much. A server that is up answers /health at once."""

PROMPT_PROBE: Final = StartupProbe(
    initial_delay_s=0,
    period_s=PROBE_PERIOD_S,
    failure_threshold=CLOUD_RUN_MAX_GPU_PROBE_S // PROBE_PERIOD_S,
    timeout_s=PROBE_TIMEOUT_S,
)
"""Sees a server within one period of its start, and waits 1,800 s for it."""
LONGEST_PROBE: Final = StartupProbe(
    initial_delay_s=CLOUD_RUN_MAX_INITIAL_DELAY_S,
    period_s=PROBE_PERIOD_S,
    failure_threshold=CLOUD_RUN_MAX_GPU_PROBE_S // PROBE_PERIOD_S,
    timeout_s=PROBE_TIMEOUT_S,
)
"""The most that Cloud Run allows beside a GPU, 2,040 s. It sees no server before 240 s."""


def default_probe(start_with_margin_s: float) -> StartupProbe:
    """Return the probe of a stack that names none: the prompt one if the start and its margin fit into it, else the longest.

    A probe that is only as long as the estimate would end starts that are slower than expected.
    """
    return PROMPT_PROBE if start_with_margin_s <= PROMPT_PROBE.budget_s else LONGEST_PROBE


def seen_after_s(probe: StartupProbe, start_s: float) -> float:
    """Return when a probe sees a server that is ready after `start_s`: at its first attempt from then on."""
    waited_s = max(0.0, start_s - probe.initial_delay_s)
    return probe.initial_delay_s + math.ceil(waited_s / probe.period_s) * probe.period_s
