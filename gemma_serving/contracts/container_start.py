"""Preparation of a Cloud Run container before its server starts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gemma_serving.contracts.compile_cache import programs_key
from gemma_serving.contracts.serving_document import BucketWeights, ServingDocument


@dataclass(frozen=True)
class GraphCache:
    """Compiled graphs of one server: `uri` is gs://BUCKET/FOLDER of its archives, `path` the folder where vLLM stores them."""

    uri: str
    path: str
    key: str
    """Version in Secret Manager of the key that signs the archives."""


@dataclass(frozen=True)
class ContainerStart:
    """Steps before the server starts. None: the step is skipped."""

    weights: BucketWeights | None = None
    graphs: GraphCache | None = None
    parts: Sequence[BucketWeights] = ()
    """Drafters and adapters to copy."""

    def text(self) -> str:
        """Return the container's argument: always the same text for the same steps."""
        steps = {name: step for name, step in asdict(self).items() if step}
        return json.dumps(steps, sort_keys=True, separators=(",", ":"))


def graphs_folder(image: str, accelerator: str, model: str, arguments: Sequence[str]) -> str:
    """Return the folder with a server's graphs, below the bucket's archives: ACCELERATOR/KEY.

    `image` is a reference of which only the digest counts, `accelerator` the name of the GPU, `model` the model's id, and `arguments` the
    server's arguments after it. The path of the weights does not affect graphs.
    """
    server = ServingDocument(
        image=image, command=(), arguments=(model, *arguments), environment={}, secret_environment={}, port=0
    )
    return f"{accelerator}/{programs_key(server)}"


def parse_start(text: str) -> ContainerStart:
    """Parse the container's argument, which the stack wrote with this module."""
    raw = json.loads(text)
    return ContainerStart(
        weights=BucketWeights(**raw["weights"]) if "weights" in raw else None,
        graphs=GraphCache(**raw["graphs"]) if "graphs" in raw else None,
        parts=tuple(BucketWeights(**part) for part in raw.get("parts", ())),
    )
