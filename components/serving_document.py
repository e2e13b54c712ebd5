"""The serving document: what a TPU virtual machine is told to run, as docs/contracts.md describes it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SCHEMA = 1
METADATA_KEY = "gemma-serving-document"
GUEST_ATTRIBUTE_NAMESPACE = "gemma-serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketWeights:
    """Weights to copy from a bucket before the server starts: "gs://BUCKET/PREFIX" to the folder `path`."""

    uri: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingDocument:
    """One server. `secret_environment` maps a variable to a Secret Manager version's full name; the value itself is never part of the document."""

    image: str
    command: Sequence[str]
    arguments: Sequence[str]
    environment: Mapping[str, str]
    secret_environment: Mapping[str, str]
    port: int
    shm_size_gib: int
    weights: BucketWeights | None

    def text(self) -> str:
        """Return the metadata value: the same document always gives the same text, so that its hash names it."""
        weights = (
            {"mode": "bucket", "uri": self.weights.uri, "path": self.weights.path} if self.weights else {"mode": "hub"}
        )
        return json.dumps(
            {
                "schema": SCHEMA,
                "image": self.image,
                "command": list(self.command),
                "args": list(self.arguments),
                "env": dict(self.environment),
                "secretEnv": dict(self.secret_environment),
                "port": self.port,
                "shmSizeGib": self.shm_size_gib,
                "weights": weights,
            },
            sort_keys=True,
            separators=(",", ":"),
        )
