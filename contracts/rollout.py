"""How a changed document replaces the one that serves: limits that stacks write beside the document, and the agent reads.

The agent's program includes this module, so it has to run on Python 3.10.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from contracts.guest_attributes import PRIVILEGED

ROLLOUT_METADATA_KEY: Final = "gemma-serving-rollout"
"""Metadata key beside the document. It is no part of the document: a machine with an older agent, which refuses unknown keys, can still
read that, and a change of a limit restarts no server."""
ENDS_AT_METADATA_KEY: Final = "gemma-serving-ends-at"
"""Metadata key with the time at which Google deletes the machine, RFC 3339. The provider writes it, once Google has said it."""
DEFAULT_READY_TIMEOUT_S: Final = 3600

ROLLOUT_KEYS: Final[Mapping[str, str]] = {
    "readyTimeoutS": "Seconds that a changed document may take until its server is ready. Then the agent starts the last good document again; "
    f"{DEFAULT_READY_TIMEOUT_S} if left out.",
    "drainS": "Seconds that running requests get to end before their server is stopped; 0, without a drain, if left out.",
    "shutdownFlag": "Whether the document's server takes `--shutdown-timeout`, with which vLLM itself refuses new requests and ends the running ones.",
    "container": f"`{PRIVILEGED}` starts the server's container with `--privileged`; left out, it gets the accelerator's devices only.",
}
"""Every key of the limits and what stands in it. A reader ignores other keys."""


@dataclass(frozen=True)
class RolloutLimits:
    """Limits of one change. Times are in seconds."""

    ready_timeout_s: float = DEFAULT_READY_TIMEOUT_S
    drain_s: float = 0.0
    shutdown_flag: bool = False
    is_privileged: bool = False
    """Whether the container gets the whole machine from the first start on."""

    def text(self) -> str:
        """Return the metadata value, always the same for the same limits."""
        values = {
            "readyTimeoutS": self.ready_timeout_s,
            "drainS": self.drain_s,
            "shutdownFlag": self.shutdown_flag,
            # Left out by default, so that the metadata of machines from before stays the same.
            **({"container": PRIVILEGED} if self.is_privileged else {}),
        }
        return json.dumps(values, sort_keys=True, separators=(",", ":"))


def parse_rollout(text: "str | None") -> RolloutLimits:
    """Read the limits; None gives the defaults. Raises ValueError: one sentence with the key and the value."""
    raw: object = {} if text is None else json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError(f"{ROLLOUT_METADATA_KEY} is not a JSON object")  # noqa: TRY004 - a bad value, like text that is not JSON
    values = cast("dict[str, object]", raw)
    return RolloutLimits(
        ready_timeout_s=_limit(values.get("readyTimeoutS"), "readyTimeoutS", DEFAULT_READY_TIMEOUT_S),
        drain_s=_limit(values.get("drainS"), "drainS", 0.0),
        shutdown_flag=values.get("shutdownFlag") is True,
        is_privileged=values.get("container") == PRIVILEGED,
    )


def _limit(value: object, key: str, default: float) -> float:
    if value is None:
        return default
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{ROLLOUT_METADATA_KEY}: `{key}` is {value!r}, but it has to be a number of seconds from 0")
    return float(value)
