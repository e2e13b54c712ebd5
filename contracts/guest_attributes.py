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
SERVING_HASH_KEY: Final = "serving-hash"
FORMER_HASH_KEY: Final = "former-hash"
AGENT_VERSION_KEY: Final = "agent-version"
PAUSE_BEGAN_KEY: Final = "pause-began-at"
PAUSE_ENDED_KEY: Final = "pause-ended-at"
ENDS_AT_KEY: Final = "ends-at"
ARCHIVES_KEY: Final = "archives"
CONTAINER_KEY: Final = "container"

CONFINED: Final = "confined"
EXPOSED: Final = "confined-with-token"
PRIVILEGED: Final = "privileged"

STARTING: Final = "starting"
PULLING_IMAGE: Final = "pulling image"
FETCHING_WEIGHTS: Final = "fetching weights"
LOADING: Final = "loading"
COMPILING: Final = "compiling"
READY: Final = "ready"
RETRYING: Final = "retrying"
RESTORING: Final = "restoring"
ENDING: Final = "ending"
FAILED: Final = "failed"

PHASES: Final[Mapping[str, str]] = {
    STARTING: "The agent runs. It has no document yet, or prepares to run one.",
    PULLING_IMAGE: "Docker pulls the server's image.",
    FETCHING_WEIGHTS: "The agent copies weights from the bucket, or vLLM downloads them.",
    LOADING: "vLLM loads the weights, or does not answer `/health` any more.",
    COMPILING: "vLLM compiles, captures graphs or warms up.",
    READY: "`/health` answers.",
    RETRYING: "The attempt failed, and the agent tries again in a moment. `detail` says why, as for `failed`.",
    RESTORING: "The document failed, and the agent starts the last document that was ready. `detail` says why, as for `failed`.",
    ENDING: "The end of the run duration is near. The server has ended the running requests and stopped.",
    FAILED: "The agent does not try again until the document or its limits change. `detail` holds the server's last lines. "
    f"`{SERVING_HASH_KEY}` says whether an older document serves.",
}
"""Every phase, in the order in which a start passes through them, and what it means."""

DETAIL_LIMIT_BYTES: Final = 2048

AGENT_ABILITIES: Final = (
    "a changed document whose server does not start is not taken back",
    "a document whose server was ready and then ends again and again is not taken back, and a way back returns to older secret versions",
    "the server's container is privileged: it has the whole machine and the token of its account",
    "a server with an API key does not start, because its path guard is not in the container",
    "archives of compiled programs are used without a signature, and the API key before a change that fails goes on working",
)
"""What an agent cannot do before each version, from version 1 on. A machine runs the agent of its last boot."""
AGENT_VERSION: Final = len(AGENT_ABILITIES)
"""Version of this agent. It rises with each ability that people have to know of."""

GUEST_ATTRIBUTES: Final[Mapping[str, str]] = {
    PHASE_KEY: "One of the phases below.",
    DOCUMENT_HASH_KEY: "Hash of the serving document that the phase is about.",
    UPDATED_AT_KEY: "RFC 3339, UTC.",
    DETAIL_KEY: f"For `{RETRYING}`, `{RESTORING}` and `{FAILED}`: the last lines of the server's log without secrets, "
    f"at most {DETAIL_LIMIT_BYTES // 1024} KiB. "
    "Otherwise one line of progress, or empty.",
    SERVING_HASH_KEY: "Hash of the document whose server answers now; empty if none does. After a failed change this is the last good document.",
    FORMER_HASH_KEY: "While the document that serves is on probation: hash of the good document before it, which serves again if the server ends "
    "four times; empty otherwise.",
    AGENT_VERSION_KEY: f"Version of the agent, now {AGENT_VERSION}. Agents before version {AGENT_VERSION} publish none.",
    PAUSE_BEGAN_KEY: "When the agent began to stop the old server for this document, RFC 3339, UTC; empty if it did not. Requests fail from then on.",
    PAUSE_ENDED_KEY: "When a server answered again after that, RFC 3339, UTC; empty while none does.",
    ARCHIVES_KEY: "One sentence if the bucket has archives of compiled programs that the stack has not signed, and that are not used; empty otherwise.",
    CONTAINER_KEY: f"`{CONFINED}` if the server's container has the accelerator's devices only, `{EXPOSED}: ` and the reason if it can also "
    f"read the token of the machine's account, or `{PRIVILEGED}: ` and the reason; empty before its first start.",
    ENDS_AT_KEY: "When Google deletes the machine, RFC 3339; empty if it has no run limit, or if nobody told the machine.",
}
"""Every key that the agent publishes, and what stands in it."""


def serving_document(published: Mapping[str, str]) -> str:
    """Return the hash of the document whose server answers; empty if none does. The first agents published no more than the phase."""
    if SERVING_HASH_KEY in published:
        return published[SERVING_HASH_KEY]
    return published.get(DOCUMENT_HASH_KEY, "") if published.get(PHASE_KEY) == READY else ""


def agent_version(published: Mapping[str, str]) -> int:
    """Return the version of the agent that published these guest attributes."""
    text = published.get(AGENT_VERSION_KEY, "")
    if text.isdecimal():
        return int(text)
    return 1 if SERVING_HASH_KEY in published else 0  # the first that could go back said what serves
