"""Weights loaded directly from `gs://` by vLLM's runai_streamer: the inputs that it rejects, and the memory of its buffer.

Sources: docs.vllm.ai, "Loading models with Run:ai Model Streamer"; vllm-project/vllm pull requests 24909 and 26464 (gs://, and the package in the
image); run-ai/runai-model-streamer, docs/src/env-vars.md and requests_iterator.py; all read 2026-11.
"""

import re
from collections.abc import Mapping
from typing import Final

from localcloud.vllm.arguments import Arguments
from localcloud.vllm.memory import EngineStartError
from localcloud.vllm.models import GIB, Model
from localcloud.vllm.settings import RuntimeEnvironment

FIRST_VERSION: Final = (0, 11, 1)
"""First release that authenticates at Cloud Storage (Google's GKE page on the streamer). Before it, `gs://` is not a valid model name."""
MB_PER_S: Final = 700.0
"""Assumed: with 16 threads and its own network, below the 800 MB/s of a public issue about S3 (run-ai/runai-model-streamer#120, 2026-01)."""
_FORMATS: Final = ("runai_streamer", "runai_streamer_sharded")
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def files_of(arguments: Arguments, environment: RuntimeEnvironment) -> Mapping[str, int]:
    """Return the objects below the model's URI, by relative name. Raises EngineStartError with vLLM's or Google's message."""
    name = arguments.model
    if _release(environment.version) < FIRST_VERSION:
        raise EngineStartError(
            f"huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{name}'. "
            "Use `repo_type` argument if needed."
        )
    bucket, _, prefix = name.removeprefix("gs://").partition("/")
    found = (environment.buckets or {}).get(bucket)
    if found is None or found.problem:
        raise EngineStartError(found.problem if found else f"google.api_core.exceptions.NotFound: 404 GET {name}")
    folder = prefix.strip("/") + "/"
    below = {key[len(folder) :]: size for key, size in found.files.items() if key.startswith(folder)}
    if below and arguments.load_format not in _FORMATS:
        # Only the files other than the weights are fetched; the default loader then finds no weights in the temporary folder.
        raise EngineStartError("RuntimeError: Cannot find any model weights with `/tmp/model_streamer`")
    return below


def buffer_bytes(model: Model, size_bytes: int, limit: int) -> int:
    """Return the host memory of the streamer's buffer. Raises EngineStartError if the limit is below the largest tensor."""
    largest = min(int(model.largest_tensor_gib * GIB), size_bytes)
    if limit < 0:
        return size_bytes
    if limit == 0:
        return largest
    if limit < largest:
        raise EngineStartError(
            "runai_model_streamer.file_streamer.requests_iterator.RunaiStreamerMemoryLimitException: "
            f"Memory limit supplied: {limit} cannot be smaller than: {largest}"
        )
    return min(limit, size_bytes)


def _release(version: str) -> tuple[int, ...]:
    found = _RELEASE.match(version)
    return tuple(int(part or 0) for part in found.groups()) if found else (0,)
