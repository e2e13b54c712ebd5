"""The serving document: what to run, as the metadata key holds it."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from components.tpu_vm.agent.base import ServingError

KNOWN_KEYS = ("schema", "image", "command", "args", "env", "secretEnv", "port", "shmSizeGib", "weights")
LAST_PORT = 65535


@dataclass(frozen=True)
class Weights:
    """Where the weights come from: `hub` (vLLM fetches them) or `bucket` (copied from `uri` to `path`)."""

    mode: str
    uri: str = ""
    path: str = ""


@dataclass(frozen=True)
class Document:
    """The serving document, checked."""

    text_hash: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    secret_env: Mapping[str, str]
    port: int
    shm_size_gib: float
    weights: Weights


def document_hash(text: str) -> str:
    """Lower-case hex SHA-256 of the metadata value's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def parse_document(text: str) -> Document:
    """Check a serving document. Raises ServingError: one sentence with the key, the value and what is allowed."""
    raw = _json_object(text)
    image, port, shm_size_gib = raw.get("image"), raw.get("port"), raw.get("shmSizeGib", 10)
    if raw.get("schema") != 1:
        _refuse("schema", raw.get("schema"), "1, the only schema that this agent knows")
    if not isinstance(image, str) or not re.fullmatch(r"[a-z0-9][\w./:@-]+", image):
        _refuse("image", image, "a container image, best by digest")
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= LAST_PORT:
        _refuse("port", port, f"a port number from 1 to {LAST_PORT}")
    if not isinstance(shm_size_gib, (int, float)) or isinstance(shm_size_gib, bool) or shm_size_gib <= 0:
        _refuse("shmSizeGib", shm_size_gib, "a number of GiB above 0")
    secret_env = _string_map(raw, "secretEnv")
    for name, version in secret_env.items():
        if not re.fullmatch(r"projects/[^/]+/secrets/[^/]+/versions/[^/]+", version):
            _refuse(f"secretEnv.{name}", version, "projects/P/secrets/S/versions/V")
    return Document(
        text_hash=document_hash(text),
        image=image,
        command=_strings(raw, "command"),
        args=_strings(raw, "args"),
        env=_string_map(raw, "env"),
        secret_env=secret_env,
        port=port,
        shm_size_gib=float(shm_size_gib),
        weights=_weights(raw.get("weights", {"mode": "hub"})),
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise ServingError(f"Serving document: it is not JSON ({error}).", retry=False) from None
    if not isinstance(value, dict):
        _refuse("(document)", value, "a JSON object")
    raw = cast("dict[str, Any]", value)
    unknown = sorted(set(raw) - set(KNOWN_KEYS))
    if unknown:
        raise ServingError(
            f"Serving document: `{unknown[0]}` is unknown; known keys are {', '.join(KNOWN_KEYS)}.", retry=False
        )
    return raw


def _refuse(key: str, value: object, allowed: str) -> NoReturn:
    shown = json.dumps(value, default=str)[:120]
    raise ServingError(f"Serving document: `{key}` is {shown}, but it has to be {allowed}.", retry=False)


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


def _weights(value: object) -> Weights:
    if not isinstance(value, dict):
        _refuse("weights", value, 'an object with "mode"')
    raw = cast("dict[str, object]", value)
    mode = raw.get("mode")
    if mode == "hub":
        return Weights("hub")
    if mode != "bucket":
        _refuse("weights.mode", mode, '"hub" or "bucket"')
    uri, path = raw.get("uri"), raw.get("path")
    if not isinstance(uri, str) or not re.fullmatch(r"gs://[a-z0-9][a-z0-9._-]+(/.+)?", uri):
        _refuse("weights.uri", uri, "gs://BUCKET/PREFIX")
    if not isinstance(path, str) or not re.fullmatch(r"(/[\w.-]+)+", path) or ".." in path.split("/"):
        _refuse("weights.path", path, "an absolute path of letters, digits, `.`, `_` and `-`")
    return Weights("bucket", uri.rstrip("/"), path)
