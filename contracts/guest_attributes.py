"""Guest attributes: what the agent on the TPU machine publishes about the server, readable without SSH.

The agent's program includes this module, so it has to run on Python 3.10.
"""

from collections.abc import Mapping
from typing import Final

GUEST_ATTRIBUTE_NAMESPACE: Final = "gemma-serving"

PHASE_KEY: Final = "phase"
DOCUMENT_HASH_KEY: Final = "document-hash"
UPDATED_AT_KEY: Final = "updated-at"
DETAIL_KEY: Final = "detail"

STARTING: Final = "starting"
PULLING_IMAGE: Final = "pulling image"
FETCHING_WEIGHTS: Final = "fetching weights"
LOADING: Final = "loading"
COMPILING: Final = "compiling"
READY: Final = "ready"
RETRYING: Final = "retrying"
FAILED: Final = "failed"

PHASES: Final[Mapping[str, str]] = {
    STARTING: "The agent runs. It has no document yet, or prepares to run one.",
    PULLING_IMAGE: "Docker pulls the server's image.",
    FETCHING_WEIGHTS: "The agent copies weights from the bucket, or vLLM downloads them.",
    LOADING: "vLLM loads the weights, or does not answer `/health` any more.",
    COMPILING: "vLLM compiles, captures graphs or warms up.",
    READY: "`/health` answers.",
    RETRYING: "The attempt failed, and the agent tries again in a moment. `detail` says why, as for `failed`.",
    FAILED: "The agent does not try again until the document changes. `detail` holds the server's last lines.",
}
"""Every phase, in the order in which a start passes through them, and what it means."""

DETAIL_LIMIT_BYTES: Final = 2048

GUEST_ATTRIBUTES: Final[Mapping[str, str]] = {
    PHASE_KEY: "One of the phases below.",
    DOCUMENT_HASH_KEY: "Hash of the serving document that the phase is about.",
    UPDATED_AT_KEY: "RFC 3339, UTC.",
    DETAIL_KEY: f"For `{RETRYING}` and `{FAILED}`: the last lines of the server's log without secrets, at most {DETAIL_LIMIT_BYTES // 1024} KiB. "
    "Otherwise one line of progress, or empty.",
}
"""Every key that the agent publishes, and what stands in it."""
