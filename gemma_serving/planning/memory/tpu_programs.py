"""Memory of compiled programs on one TPU device, outside `gpu_memory_utilization`, as a sum of named parts.

A step's temporaries and the sampler's are never used at the same time, so the larger one counts. The code of all programs stays loaded.
Google's compiler says what steps, sampling, verification and code take (dev/docs/compiled.md, which also names what is fitted or assumed).
With speculative decoding, the start-up also keeps inputs: vLLM on TPU stores the inputs of every compiled program until all programs
of a group have run once (tpu-inference 0.23.0 to 0.32.0, runner/compilation_manager.py, `_run_compilation` and `_flush_compilations`), and
the group of speculative decoding has pairs of all batch sizes, most of them whole on each device.
"""

from itertools import product
from typing import Final

from msgspec import Struct

from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.question.releases import KEEPS_WARM_UP_INPUTS, is_known_from
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.units import MIB_PER_GIB, to_gib

_FP32: Final = 4
_BF16: Final = 2
_LEAST_PADDING: Final = 8


class ProgramMemory(Struct, frozen=True, kw_only=True):
    """Memory outside the budget of one TPU device, in GiB, by what needs it."""

    step_gib: float
    """Temporaries of the largest step."""
    sampler_gib: float
    """Sampler and structured decoding at the start."""
    sampling_gib: float
    """Sampling of a full batch under load, with its logits."""
    verification_gib: float
    """Verification of proposed tokens; 0 without speculative decoding."""
    warm_up_gib: float
    """Start-up of speculative decoding; 0 without it."""
    code_gib: float
    """Code of all programs."""
    reserve_gib: float
    """What a run that served had in addition to one that failed; its use is unknown."""

    @property
    def minimum_gib(self) -> float:
        """The largest of the parts that the start needs, and the code."""
        return max(self.step_gib, self.sampler_gib, self.warm_up_gib) + self.code_gib

    @property
    def recommended_gib(self) -> float:
        """The largest of the parts that serving needs, the code and the reserve; at least the minimum.

        The reserve is of a run with fewer requests than its batch had room for, so it may be a part of their sampling.
        """
        started = max(self.sampler_gib, self.verification_gib, self.warm_up_gib) + self.reserve_gib
        return max(self.minimum_gib, max(started, self.sampling_gib) + self.code_gib)

    @property
    def words(self) -> str:
        """The parts as text."""
        parts = (
            ("largest step", self.step_gib),
            ("sampler at the start", self.sampler_gib),
            ("sampling under load", self.sampling_gib),
            ("verification", self.verification_gib),
            ("start-up of speculative decoding", self.warm_up_gib),
        )
        largest = ", ".join(f"{name} {gib:.2f}" for name, gib in parts if gib)
        return f"the largest of {largest}; code {self.code_gib:.2f}; reserve {self.reserve_gib:.2f}"


_LONG_STEP_TOKENS: Final = 4_096
"""Tokens at which a step needs twice the memory per token of a short one, because less of it fits into the chip's vector memory."""


def step_gib(resolved: Resolved, tokens: int) -> float:
    """Return the temporaries of one step of this many tokens on one device, in GiB.

    Copies in bf16 of the hidden state and of the columns of the feed-forward block that the device has, and of the embeddings of each layer and each
    expert's input, which need more per token in a long step. Fitted to half of the programs that Google's compiler compiled
    (dev/docs/compiled.md).
    """
    spec = resolved.spec
    experts = max((group.experts.active for group in spec.groups if group.experts is not None), default=0)
    feed_forward = max(group.mlp for group in spec.groups) / resolved.tp
    short = constant("TPU_STEP_HIDDEN") * spec.hidden + constant("TPU_STEP_FEED_FORWARD") * feed_forward
    long = (
        constant("TPU_STEP_LAYER_EMBEDDINGS") * spec.layers * spec.layer_embedding_dim
        + constant("TPU_STEP_EXPERT_INPUTS") * experts * spec.hidden
    )
    width = short + (1 + tokens / _LONG_STEP_TOKENS) * long
    return constant("TPU_STEP_GIB") + to_gib(tokens * width * _BF16)


def sampling_gib(resolved: Resolved) -> float:
    """Return the memory in which one device samples a full batch under load, in GiB: its logits, the program's temporaries and its output."""
    name = "TPU_SAMPLED_LOGIT_BYTES" if resolved.tp == 1 else "TPU_DIVIDED_LOGIT_BYTES"
    sequences = min(resolved.max_num_seqs, resolved.max_num_batched_tokens)
    return to_gib(sequences * resolved.spec.vocab * constant(name) / resolved.tp)


def code_gib(resolved: Resolved, buckets: int) -> float:
    """Return the code of the programs of one device, in GiB, for `buckets` batch sizes: of the steps, and of the sampler for each number of sequences.

    A step has a second program, with embeddings as input, unless only text is served. Steps of 4-bit models, whose kernels unroll more, were not
    compiled: they count twice.
    """
    is_single = resolved.serves_only_text and not resolved.unpacks_int4
    steps = buckets * (1 if is_single else 2)
    samplers = len(_paddings(resolved.max_num_seqs))
    return (steps * layers_mib(resolved.spec) + samplers * constant("TPU_SAMPLER_CODE_MIB")) / MIB_PER_GIB


def layers_mib(spec: ModelSpec) -> float:
    """Return the code of the program of one step, in MiB: the mean over the batch sizes."""
    plain = "TPU_EMBEDDING_LAYER_CODE_MIB" if spec.layer_embedding_dim else "TPU_LAYER_CODE_MIB"
    return sum(
        group.count * constant(plain if group.experts is None else "TPU_EXPERT_LAYER_CODE_MIB") for group in spec.groups
    )


def warm_up_gib(resolved: Resolved) -> float:
    """Return what the start-up of speculative decoding needs on one device, in GiB; 0 without it, on a GPU, and if the release may keep no inputs.

    These are the inputs of all programs of the group, and the temporaries and the output of the largest one, which extends the logits of a full batch.
    Built without a TPU from tpu-inference of 2026-09-24, 256 sequences with three proposals keep 27.62 GiB on each of four chips: logits of each pair
    of batch sizes in fp32 and bf16, whole on each chip, and those of the rejection sampler, divided over the chips. A batch of requests is never larger
    than its logits in the programs that extend them. The largest program has 1.00 GiB of temporaries and 1.25 GiB of output.
    """
    if not resolved.is_tpu or not resolved.speculative_tokens or not is_known_from(resolved, KEEPS_WARM_UP_INPUTS):
        return 0.0
    requests = _paddings(resolved.max_num_seqs)
    logits = _paddings(resolved.max_num_seqs * (1 + resolved.speculative_tokens))
    pairs = tuple(product(logits, requests))
    extended = sum(rows + batch for rows, batch in pairs if batch <= rows) * (_FP32 + _BF16)
    selected = sum(rows for rows, _ in pairs) * _BF16 * (1 + 1 / resolved.tp)
    largest = (2 * logits[-1] + requests[-1]) * _FP32
    vocab = resolved.spec.vocab
    return to_gib((extended + selected) * vocab) + to_gib(largest * vocab)


def _paddings(most: int) -> tuple[int, ...]:
    """Return the batch sizes that vLLM on TPU compiles: doubling from 8 until one covers the largest batch."""
    sizes = [_LEAST_PADDING]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)
