"""Guest attributes: state of the server, published by the agent on the TPU machine and readable without SSH.

The agent's program includes this module, so it must run on Python 3.10.
"""

from collections.abc import Mapping
from typing import Final

GUEST_ATTRIBUTE_NAMESPACE: Final = "gemma-serving"

PHASE_KEY: Final = "phase"
DOCUMENT_HASH_KEY: Final = "document-hash"
UPDATED_AT_KEY: Final = "updated-at"
DETAIL_KEY: Final = "detail"
SERVING_HASH_KEY: Final = "serving-hash"
FORMER_HASH_KEY: Final = "former-hash"
PAUSE_BEGAN_KEY: Final = "pause-began-at"
PAUSE_ENDED_KEY: Final = "pause-ended-at"
ENDS_AT_KEY: Final = "ends-at"
RESTART_KEY: Final = "restart"
IDLE_SINCE_KEY: Final = "idle-since"
ARCHIVES_KEY: Final = "archives"
CONTAINER_KEY: Final = "container"

CONFINED: Final = "confined"
EXPOSED: Final = "confined-with-token"
PRIVILEGED: Final = "privileged"

NOT_IDLE: Final = "busy"
"""Value of `IDLE_SINCE_KEY` if a request is running, or was less than `IDLE_FROM_S` ago."""
IDLE_FROM_S: Final = 60

STARTING: Final = "starting"
PULLING_IMAGE: Final = "pulling image"
FETCHING_WEIGHTS: Final = "fetching weights"
LOADING: Final = "loading"
COMPILING: Final = "compiling"
READY: Final = "ready"
RETRYING: Final = "retrying"
WAITING_FOR_HUB: Final = "waiting for the hub"
WAITING_FOR_REGISTRY: Final = "waiting for the registry"
WAITING_FOR_STORAGE: Final = "waiting for storage"
RESTORING: Final = "restoring"
ENDING: Final = "ending"
FAILED: Final = "failed"

PHASES: Final[Mapping[str, str]] = {
    STARTING: "The agent is running. It has no document yet, or is preparing to run one.",
    PULLING_IMAGE: "Docker pulls the server's image.",
    FETCHING_WEIGHTS: "The agent copies weights from the bucket, or vLLM downloads them.",
    LOADING: "vLLM loads the weights, or no longer answers `/health`.",
    COMPILING: "vLLM compiles, captures graphs or warms up.",
    READY: "`/health` answers.",
    RETRYING: "The attempt failed, and the agent will retry shortly. `detail` has the reason, as for `failed`.",
    WAITING_FOR_HUB: "The Hugging Face hub answers 429 or 5xx, or not at all. The agent tries again every few minutes until the run ends. "
    "`detail` has the reason, as for `failed`.",
    WAITING_FOR_REGISTRY: "The same for the image's registry.",
    WAITING_FOR_STORAGE: "The same for Cloud Storage.",
    RESTORING: "The document failed, and the agent starts the last known good document. `detail` has the reason, as for `failed`.",
    ENDING: "The run is about to expire. The server has finished the running requests and stopped.",
    FAILED: "The agent does not retry until the document or its limits change. `detail` has the server's last log lines. "
    f"`{SERVING_HASH_KEY}` shows whether an older document is serving.",
}
"""All phases and their meaning, in the order of a start."""

WAITING: Final = frozenset({WAITING_FOR_HUB, WAITING_FOR_REGISTRY, WAITING_FOR_STORAGE})
"""Phases of a cause that passes by itself."""
WITH_REASON: Final = frozenset({FAILED, RETRYING, RESTORING, *WAITING})
"""Phases whose `detail` ends with the reason."""

DETAIL_LIMIT_BYTES: Final = 2048

GUEST_ATTRIBUTES: Final[Mapping[str, str]] = {
    PHASE_KEY: "One of the phases below.",
    DOCUMENT_HASH_KEY: "Hash of the serving document to which the phase belongs.",
    UPDATED_AT_KEY: "RFC 3339, UTC.",
    DETAIL_KEY: f"For `{RETRYING}`, `{RESTORING}`, `{FAILED}` and the phases that wait: the last log lines of the server without secrets, "
    f"maximum {DETAIL_LIMIT_BYTES // 1024} KiB. "
    "Otherwise one line of progress, or empty.",
    SERVING_HASH_KEY: "Hash of the document whose server is ready now, or empty. After a failed change this is the last known good document.",
    FORMER_HASH_KEY: "While the serving document is on probation: hash of the known good document before it, which serves again if the server exits "
    "four times. Otherwise empty.",
    PAUSE_BEGAN_KEY: "Time at which the agent started to stop the old server for this document, RFC 3339, UTC, or empty. Requests fail from then on.",
    PAUSE_ENDED_KEY: "Time at which a server was ready again after that, RFC 3339, UTC, or empty.",
    ARCHIVES_KEY: "One sentence if the bucket has archives of compiled programs that the stack did not sign and that are not used; otherwise empty.",
    CONTAINER_KEY: f"`{CONFINED}` if the server's container has only the accelerator's devices, `{EXPOSED}: ` and the reason if it can also "
    f"read the token of the machine's account, or `{PRIVILEGED}: ` and the reason; empty before its first start.",
    ENDS_AT_KEY: "Time at which Google deletes the machine, RFC 3339. Empty without a run limit, or if the machine was not notified.",
    RESTART_KEY: "Last value of the metadata key `gemma-serving-restart` for which the agent restarts, or restarted, the server; empty without a restart. "
    "The phase belongs to that restart or to a later one.",
    IDLE_SINCE_KEY: f"Time since which the ready server has had no request, by its own counters, RFC 3339, UTC. `{NOT_IDLE}` if a request is running, "
    f"or if the last one was less than {IDLE_FROM_S} s ago. Empty if the server does not report it. Valid only in phase `{READY}`.",
}
"""All keys that the agent publishes, with their content."""


def serving_document(published: Mapping[str, str]) -> str:
    """Return the hash of the document whose server is ready, or empty."""
    return published.get(SERVING_HASH_KEY, "")
