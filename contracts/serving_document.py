"""Serving document, which describes the server of a TPU machine. Stacks write it into instance metadata, the agent reads it.

The agent's program includes this module, so it must run on Python 3.10.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

DOCUMENT_METADATA_KEY: Final = "gemma-serving-document"
REPOSITORIES_METADATA_KEY: Final = "gemma-serving-image-repositories"
"""Metadata key in addition to the document: a JSON object, region to HOST/PROJECT/REPOSITORY, with the repositories of the document's image.
It is separate from the document, so a change of it does not restart the server."""
RESTART_METADATA_KEY: Final = "gemma-serving-restart"
"""Metadata key in addition to the document: any new value restarts the server. Not part of the document, whose hash therefore stays the same."""
RESTART_NONCE: Final = re.compile(r"[A-Za-z0-9.:-]{1,64}")
"""Allowed values. The agent ignores others."""
SCRIPT_METADATA_KEY: Final = "startup-script"
DOCUMENT_SCHEMA: Final = 1
LAST_PORT: Final = 65535
API_KEY_VARIABLE: Final = "VLLM_API_KEY"
"""Variable of the server with the API key. A rotated key must not be accepted again."""
SECRET_VERSION: Final = re.compile(r"projects/[^/]+/secrets/[^/]+/versions/[^/]+")
DEFAULT_SHM_SIZE_GIB: Final = 10

DOCUMENT_KEYS: Final[Mapping[str, str]] = {
    "schema": f"{DOCUMENT_SCHEMA}",
    "image": "The container image, preferably by digest.",
    "command": "List of strings: the container's command.",
    "args": "List of strings: its arguments.",
    "env": "Environment variables, name to value.",
    "secretEnv": "Environment variables from Secret Manager, name to `projects/P/secrets/S/versions/V`. A secret must be a single line.",
    "port": f"Port of the server, 1 to {LAST_PORT}.",
    "shmSizeGib": f"Size of the container's /dev/shm in GiB; {DEFAULT_SHM_SIZE_GIB} by default.",
    "weights": '`{"mode": "hub"}`, or `{"mode": "bucket", "uri": "gs://BUCKET/PREFIX", "path": "/mnt/models/NAME"}`: '
    "the agent copies the prefix to `path` and mounts it into the container.",
    "parts": 'List of `{"uri": "gs://BUCKET/PREFIX", "path": "/mnt/models/NAME"}`: drafters and adapters, copied like the weights.',
}
"""All keys of the document, with their content. The agent rejects any other key."""


class DocumentError(ValueError):
    """The document is invalid. The message names the key, the value and the allowed form."""


@dataclass(frozen=True)
class BucketWeights:
    """Weights to copy from a bucket before the server starts: "gs://BUCKET/PREFIX" to the folder `path`."""

    uri: str
    path: str


@dataclass(frozen=True)
class ServingDocument:
    """One server. `secret_environment` names Secret Manager versions; a secret's value is never part of the document.

    `weights` is None if vLLM downloads them from the hub.
    """

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
        """Return the metadata value: always the same text for the same document, because its hash identifies it."""
        weights = self.weights
        parts = [{"uri": part.uri, "path": part.path} for part in self.parts]
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
                "weights": {"mode": "bucket", "uri": weights.uri, "path": weights.path} if weights else {"mode": "hub"},
                **({"parts": parts} if parts else {}),
            },
            sort_keys=True,
            separators=(",", ":"),
        )


def image_in(region: str, image: str, repositories: Mapping[str, str]) -> str:
    """Return the image's reference in the region's repository, or unchanged if `repositories` lacks the image or the region."""
    near = repositories.get(region)
    own = next((one for one in repositories.values() if image.startswith(f"{one}/")), None)
    return image if near is None or own is None else near + image.removeprefix(own)


def repositories_text(repositories: Mapping[str, str]) -> str:
    """Return the metadata value for the image's repositories."""
    return json.dumps(dict(repositories), sort_keys=True, separators=(",", ":"))


def parse_repositories(text: str) -> Mapping[str, str]:
    """Parse the image's repositories by region. Raises ValueError."""
    value: object = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{REPOSITORIES_METADATA_KEY} is not a JSON object")  # noqa: TRY004 - a bad value, like text that is not JSON
    return {str(region): str(repository) for region, repository in cast("dict[object, object]", value).items()}


def document_hash(text: str) -> str:
    """Return the lower-case hex SHA-256 of the metadata value's UTF-8 bytes, exactly as stored."""
    return hashlib.sha256(text.encode()).hexdigest()


def parse_document(text: str) -> ServingDocument:
    """Parse a document. Raises DocumentError with the key, the value and the allowed form."""
    raw = _json_object(text)
    image, port, shm_size_gib = raw.get("image"), raw.get("port"), raw.get("shmSizeGib", DEFAULT_SHM_SIZE_GIB)
    if raw.get("schema") != DOCUMENT_SCHEMA:
        _refuse("schema", raw.get("schema"), f"{DOCUMENT_SCHEMA}, the only schema that this agent supports")
    if not isinstance(image, str) or not re.fullmatch(r"[a-z0-9][\w./:@-]+", image):
        _refuse("image", image, "a container image, preferably by digest")
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= LAST_PORT:
        _refuse("port", port, f"a port number from 1 to {LAST_PORT}")
    if not isinstance(shm_size_gib, (int, float)) or isinstance(shm_size_gib, bool) or shm_size_gib <= 0:
        _refuse("shmSizeGib", shm_size_gib, "a number of GiB above 0")
    secret_environment = _string_map(raw, "secretEnv")
    for name, version in secret_environment.items():
        if not SECRET_VERSION.fullmatch(version):
            _refuse(f"secretEnv.{name}", version, "projects/P/secrets/S/versions/V")
    return ServingDocument(
        image=image,
        command=_strings(raw, "command"),
        arguments=_strings(raw, "args"),
        environment=_string_map(raw, "env"),
        secret_environment=secret_environment,
        port=port,
        shm_size_gib=shm_size_gib,
        weights=_weights(raw.get("weights", {"mode": "hub"})),
        parts=_parts(raw.get("parts", [])),
    )


def api_key_of(text: str) -> "str | None":
    """Return the API key version in a document, even if the document cannot be served, or None."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return None
    raw = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    named = cast("dict[str, Any]", raw["secretEnv"]) if isinstance(raw.get("secretEnv"), dict) else {}
    version = named.get(API_KEY_VARIABLE)
    return version if isinstance(version, str) and SECRET_VERSION.fullmatch(version) else None


def secrets_hash(secret_environment: Mapping[str, str]) -> str:
    """Return a short hash of a server's secret versions. It contains no secret value."""
    return hashlib.sha256(json.dumps(dict(secret_environment), sort_keys=True).encode()).hexdigest()[:12]


def _json_object(text: str) -> dict[str, Any]:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise DocumentError(f"Serving document is not JSON ({error}).") from None
    if not isinstance(value, dict):
        _refuse("(document)", value, "a JSON object")
    raw = cast("dict[str, Any]", value)
    unknown = sorted(set(raw) - set(DOCUMENT_KEYS))
    if unknown:
        raise DocumentError(f"Serving document: `{unknown[0]}` is unknown. Known keys: {', '.join(DOCUMENT_KEYS)}.")
    return raw


def _refuse(key: str, value: object, allowed: str) -> NoReturn:
    shown = json.dumps(value, default=str)[:120]
    raise DocumentError(f"Serving document: `{key}` is {shown}, but must be {allowed}.")


def _strings(raw: dict[str, Any], key: str) -> tuple[str, ...]:
    value: object = raw.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast("list[object]", value)):
        _refuse(key, cast("object", value), "a list of strings")
    return tuple(cast("list[str]", value))


def _string_map(raw: dict[str, Any], key: str) -> dict[str, str]:
    value: object = raw.get(key, {})
    if not isinstance(value, dict):
        _refuse(key, value, "an object of strings")
    for name, item in cast("dict[str, object]", value).items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            _refuse(f"{key}.{name}", name, "the name of an environment variable")
        if not isinstance(item, str) or "\n" in item:
            _refuse(f"{key}.{name}", item, "a string of one line")
    return cast("dict[str, str]", value)


def _weights(value: object) -> BucketWeights | None:
    if not isinstance(value, dict):
        _refuse("weights", value, 'an object with "mode"')
    raw = cast("dict[str, object]", value)
    mode = raw.get("mode")
    if mode == "hub":
        return None
    if mode != "bucket":
        _refuse("weights.mode", mode, '"hub" or "bucket"')
    return _copied("weights", raw)


def _parts(value: object) -> "tuple[BucketWeights, ...]":
    listed = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(one, dict) for one in listed):
        _refuse("parts", listed, 'a list of objects with "uri" and "path"')
    return tuple(_copied("parts", cast("dict[str, object]", one)) for one in listed)


def _copied(key: str, raw: "dict[str, object]") -> BucketWeights:
    uri, path = raw.get("uri"), raw.get("path")
    if not isinstance(uri, str) or not re.fullmatch(r"gs://[a-z0-9][a-z0-9._-]+(/.+)?", uri):
        _refuse(f"{key}.uri", uri, "gs://BUCKET/PREFIX")
    if not isinstance(path, str) or not re.fullmatch(r"(/[\w.-]+)+", path) or ".." in path.split("/"):
        _refuse(f"{key}.path", path, "an absolute path of letters, digits, `.`, `_` and `-`")
    return BucketWeights(uri.rstrip("/"), path)
