"""Phases of a start in vLLM's log, for the agent on a TPU VM and for `gemma up` of a Cloud Run service."""

import re
from typing import Final

from gemma_serving.contracts.guest_attributes import COMPILING, FETCHING_WEIGHTS, LOADING

# Messages of vLLM (GPU and TPU builds), matched case-insensitively. The first match counts.
LOG_PHASES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    # Settings name every phase, and without compilation vLLM 0.32.0 says so before it loads the weights.
    (
        "",
        re.compile(
            r"Initializing a V\d|args: |_config=|Namespace\(|Enforce eager|compilation was disabled|\[compilation\.py:"
        ),
    ),
    (
        COMPILING,
        re.compile(
            r"\bcompiling|pre-?compil|compilation|torch\.compile|captur\w* .*graph|graph captur|warm(ing)?[ -]?up",
            re.IGNORECASE,
        ),
    ),
    (FETCHING_WEIGHTS, re.compile(r"fetching \d+ files|download\w* .*(weights|model|shards)", re.IGNORECASE)),
    (LOADING, re.compile(r"load\w* .*(model|weights|checkpoint|shards)", re.IGNORECASE)),
)


def phase_in(line: str, before: str) -> str:
    """Return the phase that a line shows after the phase `before`; empty if none. Within one start, `compiling` is never followed by an earlier phase."""
    for phase, pattern in LOG_PHASES:
        if pattern.search(line):
            return phase if phase == COMPILING or before != COMPILING else ""
    return ""
