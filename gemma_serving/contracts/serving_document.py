"""Serving document, which describes the server of a TPU VM."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from gemma_serving.contracts.path_guard import API_KEY_VARIABLE

DOCUMENT_METADATA_KEY: Final = "gemma-serving-document"
REPOSITORIES_METADATA_KEY: Final = "gemma-serving-image-repositories"
"""Metadata key next to the document, so a change does not restart the server: region to HOST/PROJECT/REPOSITORY of its image."""
RESTART_METADATA_KEY: Final = "gemma-serving-restart"
"""Metadata key next to the document, whose hash stays the same: any new value restarts the server."""
RESTART_NONCE: Final = re.compile(r"[A-Za-z0-9.:-]{1,64}")
"""Allowed values. The agent ignores others."""
SCRIPT_METADATA_KEY: Final = "startup-script"
DOCUMENT_SCHEMA: Final = 1
DEFAULT_SHM_SIZE_GIB: Final = 10

DOCUMENT_KEYS: Final = (
    "schema", "image", "command", "args", "env", "secretEnv", "port", "shmSizeGib", "weights", "parts",
)  # fmt: skip
"""All keys of the document. The agent rejects any other key."""


class DocumentError(ValueError):
    """A document is invalid. The message names the key, the value and the allowed form."""


@dataclass(frozen=True)
class BucketWeights:
    """Weights to copy from a bucket before the server starts: "gs://BUCKET/PREFIX" to the folder `path`."""

    uri: str
    path: str


@dataclass(frozen=True)
class ServingDocument:
    """One server. `secret_environment` names Secret Manager versions. `weights` is None if vLLM downloads them from the hub."""

    image: str
    command: Sequence[str]
    arguments: Sequence[str]
    environment: Mapping[str, str]
    secret_environment: Mapping[str, str]
    port: int
    shm_size_gib: float = DEFAULT_SHM_SIZE_GIB
    weights: BucketWeights | None = None
    parts: Sequence[BucketWeights] = ()
    """Drafters and adapters to copy in addition to the weights."""

    @property
    def copies(self) -> "tuple[BucketWeights, ...]":
        """All folders that the agent copies before the server starts."""
        return (*([self.weights] if self.weights is not None else []), *self.parts)

    def text(self) -> str:
        """Return the metadata value, whose hash identifies the document."""
        return json.dumps(
            {
                "schema": DOCUMENT_SCHEMA,
                "image": self.image,
                "command": list(self.command),
                "args": list(self.arguments),
                "env": dict(self.environment),
                "secretEnv": dict(self.secret_environment),
                "port": self.port,
                "shmSizeGib": self.shm_size_gib,
                "weights": {"mode": "bucket", **asdict(self.weights)} if self.weights else {"mode": "hub"},
                **({"parts": [asdict(part) for part in self.parts]} if self.parts else {}),
            },
            sort_keys=True,
            separators=(",", ":"),
        )


def image_in(region: str, image: str, repositories: Mapping[str, str]) -> str:
    """Return the image's reference in the region's repository, or unchanged if none exists."""
    near = repositories.get(region)
    own = next((one for one in repositories.values() if image.startswith(f"{one}/")), None)
    return image if near is None or own is None else near + image.removeprefix(own)


def document_hash(text: str) -> str:
    """Return the lower-case hex SHA-256 of the metadata value's UTF-8 bytes, exactly as stored."""
    import hashlib  # noqa: PLC0415 - 3 ms, and a plan hashes nothing

    return hashlib.sha256(text.encode()).hexdigest()


def parse_document(text: str) -> ServingDocument:
    """Parse a document. Raises DocumentError, even for one that another version of the project wrote."""
    try:
        raw: dict[str, Any] = dict(json.loads(text))
        weights = raw.get("weights", {"mode": "hub"})
        document = ServingDocument(
            image=raw["image"],
            command=tuple(raw.get("command", ())),
            arguments=tuple(raw.get("args", ())),
            environment=dict(raw.get("env", {})),
            secret_environment=dict(raw.get("secretEnv", {})),
            port=int(raw["port"]),
            shm_size_gib=raw.get("shmSizeGib", DEFAULT_SHM_SIZE_GIB),
            weights=None if weights["mode"] == "hub" else BucketWeights(weights["uri"], weights["path"]),
            parts=tuple(BucketWeights(part["uri"], part["path"]) for part in raw.get("parts", ())),
        )
    except KeyError as error:
        raise DocumentError(f"Serving document: {error} is missing.") from None
    except (ValueError, TypeError) as error:
        raise DocumentError(f"Serving document is not JSON of the form that this agent reads ({error}).") from None
    unknown = sorted(set(raw) - set(DOCUMENT_KEYS))
    if unknown:
        raise DocumentError(f"Serving document: `{unknown[0]}` is unknown. Known keys: {', '.join(DOCUMENT_KEYS)}.")
    if any(".." in copy.path.split("/") for copy in document.copies):
        raise DocumentError("Serving document: the path of `weights` or `parts` leaves its folder.")
    if raw.get("schema") != DOCUMENT_SCHEMA:
        raise DocumentError(f"Serving document: `schema` is {raw.get('schema')}, but must be {DOCUMENT_SCHEMA}.")
    return document


def api_key_of(text: str) -> "str | None":
    """Return the API key version in a document, even if the document cannot be served, or None."""
    try:
        return str(json.loads(text)["secretEnv"][API_KEY_VARIABLE])
    except (ValueError, KeyError, TypeError):
        return None


def secrets_hash(secret_environment: Mapping[str, str]) -> str:
    """Return a short hash of a server's secret versions. It contains no secret value."""
    import hashlib  # noqa: PLC0415 - 3 ms, and a plan hashes nothing

    return hashlib.sha256(json.dumps(dict(secret_environment), sort_keys=True).encode()).hexdigest()[:12]
