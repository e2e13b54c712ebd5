"""Differences between vLLM releases that affect memory or start time.

An unknown release is treated as the one that leaves less memory and starts more slowly.
"""

from typing import Final

from planning.model.support import version_in_use, version_key
from planning.question.resolved import Resolved

KEEPS_STORED_HEAD: Final = "0.28.0"
"""First release that loads an output head stored in the checkpoint although the config ties it (vllm-project/vllm#51665, merged between
2026-08-13 and 2026-08-20; 0.28.0 is dated 2026-08-26). That 0.28.0 has it is assumed: seen in 0.29.1rc1 on TPU and in 0.30.0 on an L4."""
RUNNER_V2: Final = "0.25.0"
"""First release whose second model runner serves dense models on GPUs (release notes, vllm-project/vllm#44443)."""
RUNNER_V2_PROFILES_ENCODER: Final = "0.29.0"
"""First release whose second model runner runs the image encoder during profiling (vllm-project/vllm#48469). A log of 0.28.0 reports only
the encoder's cache budget, one of 0.30.0 also the profiled item; that 0.29.0 does so is assumed."""
COUNTS_TOKENS_IN_FLIGHT: Final = "0.26.0"
"""First release that keeps the blocks of a sliding window until both steps in flight are done (vllm-project/vllm#47728, regression report
#49878: Gemma 4 from 0.25.1 to 0.26). Before it, a request held one step's tokens in addition to its window."""
STEPS_IN_FLIGHT: Final = 2
STREAMS_ON_TPU: Final = "0.29.0"
"""First release whose TPU image is known to have the loader runai_streamer with gs:// support. The pinned one registers it, and a nightly
of 2026-04-01 served with it (llm-d/llm-d#1102; vllm-project/tpu-inference#955). v0.13.2-ironwood did not (same pull request)."""
STARTS_FASTER_ON_TPU: Final = "0.29.0"
"""First release with the faster server start on TPU (`planning.data.overheads.TPU_PROCESS_START_S`); none between 0.26.1 and 0.29.1 was tested."""

DECODES_FASTER_ON_TPU: Final = "0.29.0"
"""First release whose decoding steps on TPU have cheaper layers and sequences (`planning.data.overheads.TPU_SEQUENCE_LAYER_S`); none between 0.26.1
and 0.29.1 was tested."""


def is_before(resolved: Resolved, release: str) -> bool:
    """Return whether the server is known to be older than a release. Development versions count as the release."""
    version, first = _version(resolved), version_key(release)
    return version is not None and first is not None and version < first


def is_known_from(resolved: Resolved, release: str) -> bool:
    """Return whether the server is known to be at a release or later."""
    return _version(resolved) is not None and not is_before(resolved, release)


def _version(resolved: Resolved) -> tuple[int, ...] | None:
    return version_key(version_in_use(resolved.accelerator, resolved.deployment.image_version))


def keeps_stored_head(resolved: Resolved) -> bool:
    """Return whether a GPU keeps the output head that the checkpoint stores, in addition to the embeddings.

    vLLM loads it, and ties it again only if it equals the embeddings and the model has a single embedding table
    (model_loader/weight_tying.py). Per-layer embeddings (E2B, E4B) are a second table, so their heads always stay. That the others are
    copies is assumed, because a quantization tool writes them.
    """
    has_two_tables = resolved.spec.layer_embedding_dim > 0
    return resolved.spec.head_in_checkpoint and has_two_tables and not is_before(resolved, KEEPS_STORED_HEAD)


def has_runner_v2(resolved: Resolved) -> bool:
    """Return whether vLLM's second model runner serves the model: dense models on GPUs."""
    return not resolved.is_tpu and not resolved.spec.is_moe and is_known_from(resolved, RUNNER_V2)


def profiles_encoder(resolved: Resolved) -> bool:
    """Return whether the profiling run includes the image encoder, which reduces the KV cache."""
    return not has_runner_v2(resolved) or not is_before(resolved, RUNNER_V2_PROFILES_ENCODER)


def tokens_in_flight(resolved: Resolved) -> int:
    """Return the tokens of one request that a GPU may have in flight: two steps' worth if the next is scheduled while one runs.

    Source: `max_in_flight_tokens` of vLLM's configuration (v1/kv_cache_interface.py, SlidingWindowSpec). With it, 9.65 GiB of E2B on an L4
    are 1,076,635 tokens, while 1,076,849 were logged (source e2b-l4).
    """
    overlaps = resolved.vllm.async_scheduling is not False and not is_before(resolved, COUNTS_TOKENS_IN_FLIGHT)
    return resolved.max_num_batched_tokens * (STEPS_IN_FLIGHT if overlaps and not resolved.is_tpu else 1)
