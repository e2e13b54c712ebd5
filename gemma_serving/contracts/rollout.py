"""Limits for replacing the serving document on a TPU VM."""

import json
from dataclasses import dataclass
from typing import Final

from gemma_serving.contracts.guest_attributes import PRIVILEGED

ROLLOUT_METADATA_KEY: Final = "gemma-serving-rollout"
"""Metadata key next to the document, because a changed limit must not restart the server."""
ENDS_AT_METADATA_KEY: Final = "gemma-serving-ends-at"
"""Metadata key with the time at which Google deletes the TPU VM, RFC 3339. The provider writes it."""
DEFAULT_READY_TIMEOUT_S: Final = 3600


@dataclass(frozen=True)
class RolloutLimits:
    """Limits of one change. Times are in seconds."""

    ready_timeout_s: float = DEFAULT_READY_TIMEOUT_S
    drain_s: float = 0.0
    shutdown_flag: bool = False
    is_privileged: bool = False
    """True if the container gets the whole TPU VM from its first start."""

    def text(self) -> str:
        """Return the metadata value, always the same for the same limits."""
        values = {
            "readyTimeoutS": self.ready_timeout_s,
            "drainS": self.drain_s,
            "shutdownFlag": self.shutdown_flag,
            **({"container": PRIVILEGED} if self.is_privileged else {}),
        }
        return json.dumps(values, sort_keys=True, separators=(",", ":"))


def parse_rollout(text: "str | None") -> RolloutLimits:
    """Parse the limits; None means the defaults. Raises ValueError, TypeError or AttributeError."""
    raw = json.loads(text or "{}")
    return RolloutLimits(
        ready_timeout_s=float(raw.get("readyTimeoutS", DEFAULT_READY_TIMEOUT_S)),
        drain_s=float(raw.get("drainS", 0)),
        shutdown_flag=raw.get("shutdownFlag") is True,
        is_privileged=raw.get("container") == PRIVILEGED,
    )
