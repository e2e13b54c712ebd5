"""Compile cache of a TPU VM: location of its archive, and which servers compile the same programs."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Final

from gemma_serving.contracts.serving_document import ServingDocument

ARCHIVE_METADATA_KEY: Final = "gemma-serving-compile-archive"
"""Metadata key next to the document's, so a change does not restart the server."""
ARCHIVE_PREFIX: Final = "compile-cache"
"""Folder of the bucket with the archives, the only one that the TPU VM can write to."""
ARCHIVE_KEEP_DAYS: Final = 30
"""Age, in days, at which the stack's bucket deletes an archive."""
COMPILE_CACHE_VARIABLE: Final = "VLLM_XLA_CACHE_PATH"
"""Environment variable of the server: folder of its container with compiled programs."""

NEUTRAL_FLAGS: Final = frozenset({
    "allowed-media-domains", "allowed-origins", "api-key", "auto-tool-choice", "chat-template", "enable-auto-tool-choice",
    "enable-log-requests", "host", "load-format", "log-requests", "log-stats", "middleware", "port", "reasoning-parser", "revision",
    "safetensors-load-strategy", "served-model-name", "tokenizer-revision", "tool-call-parser", "uvicorn-log-level",
})  # fmt: skip
"""Flags of vLLM that do not affect compiled programs: flags of the HTTP server and of loading. Others are assumed to affect
them. A missing program costs its compile time, an unused one a few megabytes. XLA identifies a program by its contents."""
NEUTRAL_VARIABLES: Final = frozenset({
    COMPILE_CACHE_VARIABLE, "DO_NOT_TRACK", "HF_HOME", "HF_HUB_DISABLE_TELEMETRY", "HF_TOKEN", "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
    "VLLM_API_KEY", "VLLM_MAX_N_SEQUENCES", "VLLM_MEDIA_URL_ALLOW_REDIRECTS", "VLLM_NO_USAGE_STATS", "VLLM_SERVER_DEV_MODE",
})  # fmt: skip
"""Environment variables that do not affect compiled programs."""
_IMAGE: Final = "image"
_NEUTRAL_KEYS: Final = frozenset({"port", "shmSizeGib", "weights", "parts"})
"""Keys of the serving document that do not affect compiled programs."""


@dataclass(frozen=True)
class ArchiveSettings:
    """Location of archived programs: `uri` is gs://BUCKET/FOLDER, `accelerator` the slice, such as v6e-4."""

    uri: str
    accelerator: str
    key: str
    """Version in Secret Manager of the key that signs the archives."""

    def text(self) -> str:
        """Return the metadata value."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


def parse_archive(text: str) -> ArchiveSettings:
    """Parse the metadata value, which the stack wrote."""
    raw = json.loads(text)
    return ArchiveSettings(raw["uri"], raw["accelerator"], raw["key"])


def programs_key(document: ServingDocument) -> str:
    """Return the key of the programs that a server compiles: 32 hex digits.

    It depends on the image's digest, the command, and the flags and environment variables that affect programs. The image's registry is
    ignored, so TPU VMs of all regions share an archive.
    """
    named = [_digest(document.image), list(document.command), [one for one in document.arguments if not _neutral(one)]]
    variables = {name: text for name, text in document.environment.items() if name not in NEUTRAL_VARIABLES}
    text = json.dumps([*named, variables], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def changes_programs(key: str, before: str | None, after: str | None) -> bool:
    """Return whether a changed value of a server makes the TPU VM compile again: another `programs_key`.

    `key`: a flag with its hyphens, an environment variable, or a key of the serving document (`contracts.server_change`).
    """
    if key == _IMAGE:
        return _digest(before or "") != _digest(after or "")
    if key.startswith("--"):
        return not _neutral(key)
    return key not in NEUTRAL_VARIABLES | _NEUTRAL_KEYS


def _digest(image: str) -> str:
    return image.partition("@")[2] or image


def _neutral(argument: str) -> bool:
    if not argument.startswith("--"):
        return False
    name = argument[2:].partition("=")[0].replace("_", "-")
    return name in NEUTRAL_FLAGS or name.removeprefix("no-").removeprefix("disable-") in NEUTRAL_FLAGS
