"""Guest attributes: state of the server, published by the agent on the TPU VM."""

import re
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
WAITING_FOR_DOCKER: Final = "waiting for docker"
RESTORING: Final = "restoring"
ENDING: Final = "ending"
FAILED: Final = "failed"

WAITING: Final = frozenset({WAITING_FOR_HUB, WAITING_FOR_REGISTRY, WAITING_FOR_STORAGE, WAITING_FOR_DOCKER})
"""Phases of a transient cause."""
WITH_REASON: Final = frozenset({FAILED, RETRYING, RESTORING, *WAITING})
"""Phases whose `detail` ends with the reason."""

DETAIL_LIMIT_BYTES: Final = 2048

DOCKER_HINT: Final = re.compile(r"(?:Run|See) 'docker [\w ]*--help'.*")
"""Last line of an error of `docker run`; Docker 28 prints it after each one. The agent does not publish it."""


def reason_of(detail: str) -> str:
    """Return the reason in a `detail`: its last line, or an empty string."""
    lines = [line.strip() for line in detail.splitlines()]
    return next((line for line in reversed(lines) if line), "")
