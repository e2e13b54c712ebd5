"""What servers really reported, to check the planner against. Nothing in `planning` reads this; a figure here never enters a formula.

Field reports 000 to 003 are the four deployments that this project grew out of: E2B on v6e-4 (000), 26B-A4B on v6e-4 (001), 26B-A4B
QAT on an L4 (002) and 31B QAT on an L4 (003). The others are boot logs that people published.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from planning.catalog import MODELS, spec_of
from planning.memory import memory_plan
from planning.overheads import VM_IMAGE_PULL_S
from planning.subject import Subject, examine
from planning.types import CloudRunOptions, Deployment, StartupProbe, TpuOptions
from planning.vllm_args import VllmOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TURBO: Final[Mapping[str, str | int | float | bool]] = {"method": "ngram", "num_speculative_tokens": 3}

E2B_V6E4: Final = Deployment(
    model="google/gemma-4-E2B-it",
    accelerator="v6e-4",
    vllm=VllmOptions(
        tensor_parallel_size=4,
        max_model_len=16_384,
        max_num_batched_tokens=4_096,
        disable_chunked_mm_input=True,
        kv_cache_dtype="fp8",
        gpu_memory_utilization=0.4,
        limit_mm_per_prompt={"image": 4, "audio": 1},
    ),
    tpu=TpuOptions(max_run_duration_s=14_400),
)
TURBO_26B_V6E4: Final = Deployment(
    model="google/gemma-4-26B-A4B-it",
    accelerator="v6e-4",
    vllm=VllmOptions(
        tensor_parallel_size=4,
        dtype="bfloat16",
        kv_cache_dtype="fp8",
        gpu_memory_utilization=0.90,
        block_size=32,
        max_model_len=16_384,
        max_num_seqs=256,
        max_num_batched_tokens=4_096,
        speculative_config=_TURBO,
        enable_prefix_caching=True,
        disable_chunked_mm_input=True,
        safetensors_load_strategy="prefetch",
        limit_mm_per_prompt={"image": 4, "audio": 1},
    ),
)
QAT_26B_L4: Final = Deployment(
    model="google/gemma-4-26B-A4B-it-qat-w4a16-ct",
    accelerator="L4",
    vllm=VllmOptions(kv_cache_dtype="fp8", gpu_memory_utilization=0.90, block_size=16, max_model_len=16_384),
    weights_mode="fuse",
    host_memory_gib=32,
    cloud_run=CloudRunOptions(
        startup_probe=StartupProbe(initial_delay_s=240, period_s=60, failure_threshold=25, timeout_s=60)
    ),
)
_QAT_31B_FLAGS: Final = VllmOptions(kv_cache_dtype="fp8", safetensors_load_strategy="lazy")
QAT_31B_L4_OFFLOAD: Final = Deployment(
    model="google/gemma-4-31B-it-qat-w4a16-ct",
    accelerator="L4",
    # The log's 5 and 4 captured graphs, up to 16 and 8, mean max-num-seqs 8.
    vllm=replace(_QAT_31B_FLAGS, cpu_offload_gib=14, max_model_len=8_192, gpu_memory_utilization=0.90, max_num_seqs=8),
    weights_mode="fuse",
    host_memory_gib=32,
    cloud_run=CloudRunOptions(
        startup_probe=StartupProbe(initial_delay_s=240, period_s=60, failure_threshold=30, timeout_s=50)
    ),
)
QAT_31B_L4_OFFLOAD_5: Final = replace(
    QAT_31B_L4_OFFLOAD, vllm=replace(_QAT_31B_FLAGS, cpu_offload_gib=5, max_model_len=4_096)
)
QAT_31B_L4: Final = replace(
    QAT_31B_L4_OFFLOAD, vllm=replace(_QAT_31B_FLAGS, max_model_len=4_096, gpu_memory_utilization=0.95)
)
QAT_31B_L4_LOW: Final = replace(QAT_31B_L4, vllm=replace(QAT_31B_L4.vllm, gpu_memory_utilization=0.85))
QAT_31B_L4_EAGER: Final = replace(QAT_31B_L4, vllm=replace(QAT_31B_L4.vllm, enforce_eager=True))
BF16_26B_L4: Final = Deployment(model="google/gemma-4-26B-A4B-it", accelerator="L4")
BF16_31B_L4: Final = Deployment(model="google/gemma-4-31B-it", accelerator="L4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: what was reported, and how close the planner must come."""

    name: str
    measured: float
    read: Callable[[Subject], float]
    tolerance: float
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A deployment and what was reported about it."""

    title: str
    deployment: Deployment
    figures: tuple[Figure, ...]
    source: str
    usable_gib: float | None = field(default=None)
    """Memory of a device that the catalog does not have; everything else is that of `deployment.accelerator`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A deployment that was seen to run, or to die."""

    title: str
    deployment: Deployment
    runs: bool
    source: str


def subject_of(case: Case) -> Subject:
    """Return what the planner computes for the case."""
    subject = examine(case.deployment)
    if case.usable_gib is None:
        return subject
    accelerator = replace(subject.resolved.accelerator, usable_gib=case.usable_gib)
    resolved = replace(subject.resolved, accelerator=accelerator)
    return replace(subject, resolved=resolved, memory=memory_plan(resolved))


WEIGHTS: Final = 0.03
KV: Final = 0.05
STARTUP: Final = 0.20
DECODE: Final = 0.30
SATURATION: Final = 0.50


def _weights(measured: float) -> Figure:
    return Figure(
        name="weights a device", measured=measured, read=lambda s: s.memory.weights_gib, tolerance=WEIGHTS, unit="GiB"
    )


def _checkpoint(measured: float) -> Figure:
    return Figure(
        name="checkpoint", measured=measured, read=lambda s: s.memory.checkpoint_gib, tolerance=WEIGHTS, unit="GiB"
    )


def _kv_gib(measured: float) -> Figure:
    return Figure(name="KV cache a device", measured=measured, read=lambda s: s.memory.kv_gib, tolerance=KV, unit="GiB")


def _tokens(measured: float) -> Figure:
    return Figure(name="KV tokens", measured=measured, read=lambda s: s.memory.kv_tokens, tolerance=KV)


def _blocks(measured: float) -> Figure:
    return Figure(name="KV blocks", measured=measured, read=lambda s: s.memory.kv_blocks, tolerance=KV)


def _request(measured: float) -> Figure:
    return Figure(
        name="KV of one request", measured=measured, read=lambda s: s.memory.kv_request_gib, tolerance=KV, unit="GiB"
    )


def _load(measured: float) -> Figure:
    return Figure(name="loading", measured=measured, read=lambda s: s.startup.load_s, tolerance=STARTUP, unit="s")


def _compile(measured: float) -> Figure:
    return Figure(
        name="compile and warm-up", measured=measured, read=lambda s: s.startup.compile_s, tolerance=STARTUP, unit="s"
    )


def _start(measured: float) -> Figure:
    return Figure(
        name="start-up in all", measured=measured, read=lambda s: s.startup.total_s, tolerance=STARTUP, unit="s"
    )


def _decode(measured: float) -> Figure:
    return Figure(
        name="decoding, one request",
        measured=measured,
        read=lambda s: s.throughput.decode_tok_per_s,
        tolerance=DECODE,
        unit="tok/s",
    )


def _decode_full(measured: float) -> Figure:
    return Figure(
        name="decoding, 64 requests",
        measured=measured,
        read=lambda s: s.throughput.saturated_tok_per_s,
        tolerance=SATURATION,
        unit="tok/s",
    )


def _restart(measured: float) -> Figure:
    return Figure(
        name="start-up, image pulled",
        measured=measured,
        read=lambda s: s.startup.total_s - VM_IMAGE_PULL_S,
        tolerance=STARTUP,
        unit="s",
    )


def _one_chip(model: str, *, max_model_len: int) -> Deployment:
    """Return the public sweep of three models on one v6e chip, 64 requests at most."""
    return Deployment(
        model=f"google/gemma-4-{model}-it",
        accelerator="v6e-1",
        vllm=VllmOptions(
            gpu_memory_utilization=0.9,
            max_num_batched_tokens=4_096,
            max_model_len=max_model_len,
            max_num_seqs=64,
            limit_mm_per_prompt={"image": 0, "audio": 0},
        ),
    )


FIELD_REPORTS: Final[tuple[Case, ...]] = (
    Case(
        title="E2B, v6e-4, TP 4, utilisation 0.4",
        deployment=E2B_V6E4,
        figures=(_checkpoint(9.54), _weights(2.39), _blocks(18_523), _tokens(592_736), _decode(207.27)),
        source="field report 000",
    ),
    Case(
        title="26B-A4B QAT w4a16, L4, FUSE, 32 GiB",
        deployment=QAT_26B_L4,
        figures=(
            _weights(16.44),
            Figure(
                name="host memory while loading",
                measured=16.77,
                read=lambda s: s.memory.load_peak_host_gib,
                tolerance=WEIGHTS,
                unit="GiB",
            ),
            _blocks(7_097),
            _load(664.24),
            _compile(98.93 + 4.03),
            _start(664.24 + 98.93 + 4.03),
            _decode(61.67),
        ),
        source="field report 002",
    ),
    Case(
        title="31B QAT w4a16, L4, offload 14 GiB",
        deployment=QAT_31B_L4_OFFLOAD,
        figures=(_tokens(48_161), _load(400), _decode(0.8)),
        source="field report 003",
    ),
    Case(
        title="31B QAT w4a16, L4, offload 5 GiB",
        deployment=QAT_31B_L4_OFFLOAD_5,
        figures=(_decode(2),),
        source="field report 003",
    ),
    Case(
        title="31B QAT w4a16, L4, no offload, at the moment of the crash",
        deployment=QAT_31B_L4,
        figures=(
            Figure(
                name="in use before the last allocation",
                measured=19.81,
                read=lambda s: s.memory.load_peak_device_gib - 2.625,
                tolerance=WEIGHTS,
                unit="GiB",
            ),
        ),
        source="field report 003",
    ),
    Case(
        title="26B-A4B, v6e-4, turbo-stable, cold",
        deployment=TURBO_26B_V6E4,
        figures=(_start(24 * 60),),
        source="field report 001",
    ),
)

_LONG_26B_A100: Final = Deployment(
    model="google/gemma-4-26B-A4B-it",
    accelerator="A100-80GB",
    vllm=VllmOptions(gpu_memory_utilization=0.9, max_model_len=131_072, enforce_eager=True),
)
_TPU_QAT: Final = VllmOptions(gpu_memory_utilization=0.92, max_model_len=2_048, max_num_seqs=16)
"""4-bit checkpoints on one v6e chip: an image with three patches that vLLM has not merged, so the planner refuses them (FIT06)."""
_TEXT_12B_QAT: Final = replace(
    spec_of("google/gemma-4-12B-it", "w4a16"), tpu_torch_path=False, other_vision_params=0, native_quantization="w4a16"
)
_LONG_12B_3090: Final = VllmOptions(
    max_model_len=262_144, max_num_batched_tokens=2_496, limit_mm_per_prompt={"image": 0, "audio": 0}
)
_UNPADDED_26B: Final = Deployment(
    model="gemma-4-26B-A4B-it-w4a16, experts not padded",
    accelerator="L4",
    model_spec=replace(MODELS["google/gemma-4-26B-A4B-it"], native_quantization="w4a16"),
)
_TEXT_ONLY: Final = VllmOptions(
    limit_mm_per_prompt={"image": 0, "audio": 0, "video": 0}, max_model_len=2_048, max_num_seqs=16
)

_SWEEP: Final = "xbill9/gemma4-dev, 2026-07-25 (sweep on one v6e chip)"

PUBLIC_LOGS: Final[tuple[Case, ...]] = (
    *(
        Case(
            title=f"{model} QAT w4a16, v6e-1, patched",
            deployment=Deployment(model=f"google/gemma-4-{model}-it-qat-w4a16-ct", accelerator="v6e-1", vllm=_TPU_QAT),
            figures=(_weights(weights), _tokens(tokens)),
            source="xbill9/gemma4-dev, 2026-09-25",
        )
        for model, weights, tokens in (("E2B", 7.17, 1_256_448), ("E4B", 10.15, 348_160), ("31B", 21.67, 8_320))
    ),
    Case(
        title="12B QAT w4a16, v6e-1, text only, patched",
        deployment=Deployment(
            model="gemma-4-12B-it-qat-w4a16-ct, language model only",
            accelerator="v6e-1",
            model_spec=_TEXT_12B_QAT,
            vllm=_TPU_QAT,
        ),
        figures=(_weights(9.46), _tokens(60_160)),
        source="xbill9/gemma4-dev, 2026-09-25",
    ),
    Case(
        title="31B QAT w4a16",
        deployment=QAT_31B_L4,
        figures=(_checkpoint(23_265_352_448 / 2**30),),
        source="file list of google/gemma-4-31B-it-qat-w4a16-ct",
    ),
    Case(
        title="12B QAT w4a16, 24 GB GPU, 262,144 tokens",
        deployment=Deployment(
            model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4", platform="gce", vllm=_LONG_12B_3090
        ),
        figures=(_checkpoint(9.56), _weights(8.28), _request(10.99 / 2.16)),
        source="public RTX 3090 log, 2026-06-11",
    ),
    Case(
        title="E2B, v6e-1, utilisation 0.92",
        deployment=Deployment(
            model="google/gemma-4-E2B-it",
            accelerator="v6e-1",
            vllm=VllmOptions(gpu_memory_utilization=0.92, max_model_len=32_768),
        ),
        figures=(_weights(8.97), _kv_gib(19.77), _tokens(1_151_744), _blocks(17_996), _compile(396.3), _decode(202.9)),
        source="xbill9/gemma4-dev, 2026-08-10 (v6e-1)",
    ),
    Case(
        title="E2B, v5e-1, utilisation 0.92",
        deployment=Deployment(
            model="google/gemma-4-E2B-it",
            accelerator="v5e-1",
            vllm=VllmOptions(gpu_memory_utilization=0.92, max_model_len=16_384),
        ),
        figures=(
            _weights(8.97),
            _kv_gib(5.52),
            _tokens(321_376),
            _blocks(10_043),
            _compile(738),
            _start(986),
            _decode(120),
        ),
        source="xbill9/gemma4-dev, 2026-08-06 (v5e-1)",
    ),
    Case(
        title="E2B, v5e-1, utilisation 0.95",
        deployment=Deployment(
            model="google/gemma-4-E2B-it",
            accelerator="v5e-1",
            vllm=VllmOptions(gpu_memory_utilization=0.95, max_model_len=16_384),
        ),
        figures=(_kv_gib(5.99), _tokens(348_896)),
        source="xbill9/gemma4-dev, 2026-08-07 (v5e-1)",
    ),
    Case(
        title="31B, v6e-4, TP 4, utilisation 0.92",
        deployment=Deployment(
            model="google/gemma-4-31B-it",
            accelerator="v6e-4",
            vllm=VllmOptions(gpu_memory_utilization=0.92, max_model_len=32_768),
        ),
        figures=(_weights(14.6), _kv_gib(56.57 / 4), _tokens(67_392), _blocks(1_053), _compile(399.6)),
        source="xbill9/gemma4-dev, 2026-08-25 (v6e-4)",
    ),
    Case(
        title="E2B, v6e-1, 64 users",
        deployment=_one_chip("E2B", max_model_len=65_536),
        figures=(_restart(490), _decode(211), _decode_full(2_501)),
        source=_SWEEP,
    ),
    Case(
        title="E4B, v6e-1, 64 users",
        deployment=_one_chip("E4B", max_model_len=65_536),
        figures=(_restart(524), _decode(111), _decode_full(2_138)),
        source=_SWEEP,
    ),
    Case(
        title="12B, v6e-1, 64 users",
        deployment=_one_chip("12B", max_model_len=8_192),
        figures=(_restart(622), _decode(45.3)),
        source=_SWEEP,
    ),
    Case(
        title="12B, v6e-1, text only on the JAX path, utilisation 0.92",
        deployment=Deployment(
            model="gemma-4-12B-it, language model only",
            accelerator="v6e-1",
            model_spec=replace(MODELS["google/gemma-4-12B-it"], tpu_torch_path=False, other_vision_params=0),
            vllm=VllmOptions(gpu_memory_utilization=0.92, max_model_len=2_048, max_num_seqs=16),
        ),
        figures=(_weights(22.18), _blocks(160)),
        source="xbill9/gemma4-dev, 2026-09-26",
    ),
    Case(
        title="12B, v6e-1, PyTorch path",
        deployment=Deployment(model="google/gemma-4-12B-it", accelerator="v6e-1"),
        figures=(_weights(24.56),),
        source="xbill9/gemma4-dev, 2026-09-26",
    ),
    Case(
        title="26B-A4B, A100 80 GB, eager, 131,072 tokens",
        deployment=_LONG_26B_A100,
        figures=(_weights(48.5), _kv_gib(21.5)),
        source="myoceane.fr, vLLM 0.19 on A100",
    ),
    Case(
        title="12B on a GPU",
        deployment=Deployment(model="google/gemma-4-12B-it", accelerator="H100"),
        figures=(_weights(22.57),),
        source="vllm-project/vllm#44494",
    ),
    Case(
        title="26B-A4B fp8 on a GPU",
        deployment=Deployment(model="google/gemma-4-26B-A4B-it", accelerator="H100", quantization="fp8"),
        figures=(_weights(25.67),),
        source="eugr/spark-vllm-docker#217",
    ),
    Case(
        title="26B-A4B QAT w4a16, experts padded to 768",
        deployment=replace(QAT_26B_L4, accelerator="A100-80GB", weights_mode=None, host_memory_gib=None),
        figures=(_weights(16.82),),
        source="public B70 log of gemma4-26b-a4b-it-qat-w4a16-ct",
    ),
    Case(
        title="26B-A4B w4a16, experts not padded",
        deployment=_UNPADDED_26B,
        figures=(_checkpoint(15.29), _weights(15.76)),
        source="public B70 log; xbill9/gemma4-dev, 2026-09-26 (checkpoint)",
    ),
    Case(
        title="26B-A4B w4a16, experts not padded, text only",
        deployment=replace(_UNPADDED_26B, vllm=_TEXT_ONLY),
        figures=(_weights(14.8),),
        source="xbill9/gemma4-dev, 2026-09-26 (L4)",
    ),
    Case(
        title="12B, two 24 GB GPUs, 131,072 tokens",
        deployment=Deployment(
            model="google/gemma-4-12B-it",
            accelerator="L4x2",
            vllm=VllmOptions(max_model_len=131_072, max_num_batched_tokens=4_096),
        ),
        figures=(_request(8.16 / 2.93),),
        source="noonghunna/club-3090, 2026-06-04",
    ),
    Case(
        title="E2B, GB10 (121.69 GiB), utilisation 0.6, 131,072 tokens",
        deployment=Deployment(
            model="google/gemma-4-E2B-it",
            accelerator="H100",
            vllm=VllmOptions(
                gpu_memory_utilization=0.6, max_model_len=131_072, max_num_seqs=32, max_num_batched_tokens=8_192
            ),
        ),
        figures=(_tokens(9_493_769),),
        source="0xBakeer/inference-atlas#14",
        usable_gib=121.69,
    ),
)

VERDICTS: Final[tuple[Verdict, ...]] = (
    Verdict(title="E2B, v6e-4, utilisation 0.4", deployment=E2B_V6E4, runs=True, source="000"),
    Verdict(title="26B-A4B, v6e-4, turbo-stable", deployment=TURBO_26B_V6E4, runs=True, source="001"),
    Verdict(title="26B-A4B QAT, L4", deployment=QAT_26B_L4, runs=True, source="002"),
    Verdict(title="31B QAT, L4, offload 14", deployment=QAT_31B_L4_OFFLOAD, runs=True, source="003"),
    Verdict(title="31B QAT, L4, offload 5", deployment=QAT_31B_L4_OFFLOAD_5, runs=True, source="003"),
    Verdict(title="31B QAT, L4, utilisation 0.95", deployment=QAT_31B_L4, runs=False, source="003"),
    Verdict(title="31B QAT, L4, utilisation 0.85", deployment=QAT_31B_L4_LOW, runs=False, source="003"),
    Verdict(title="31B QAT, L4, eager, utilisation 0.95", deployment=QAT_31B_L4_EAGER, runs=False, source="003"),
    Verdict(title="26B-A4B bf16, L4", deployment=BF16_26B_L4, runs=False, source="002, 003"),
    Verdict(title="31B bf16, L4", deployment=BF16_31B_L4, runs=False, source="003"),
)

CONTRADICTIONS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "000: 18,523 blocks of 16 tokens, 296,368 tokens",
        "592,736 tokens",
        "The block shape printed beside it, (32, 4, 4, 256), has 32 tokens; 18,523 x 32 x 18 KiB is what 0.4 x 31.24 GiB leave beside the weights.",
    ),
    (
        "000: 12.53 GiB of KV a chip beside 2.39 GiB of weights",
        "10.2 GiB",
        "12.53 GiB is 0.4 x 31.25 GiB, the whole budget, with the weights inside.",
    ),
    (
        "000: 2.39 GiB of weights a chip",
        "2.33 GiB",
        "A quarter of the checkpoint (9.54 GiB). On TPU the audio tower (0.57 GiB) is not loaded, and the single KV head is copied to every chip.",
    ),
    (
        "000, 001: fp8 KV doubles the tokens",
        "not on E2B",
        "One KV head a chip: its fp8 is padded to the width of bf16 (FIT07).",
    ),
    (
        "002: 113,552 tokens of KV",
        "7,097 blocks, 53,000 tokens",
        "A block is a page of one of six layer groups, so blocks x 16 is no number of tokens; vLLM's own line is concurrency x max-model-len.",
    ),
    (
        "002: weights of 13, 16.44 and 16.77 GB",
        "16.4 GiB on disk, 16.8 GiB on the GPU",
        "13 is 26 billion half bytes; 16.44 is the checkpoint with scales, bf16 embeddings and padded experts; the rest are position tables.",
    ),
    (
        "003: 24.9 GiB of weights, 5.05 billion parameters of embeddings and head",
        "19.5 GiB, and 22.4 GiB while loading",
        "262,144 x 5,376 are 1.41 billion. The crash says 19.81 GiB in use, 2.62 GiB asked for: weights, context, and the head before it is tied.",
    ),
    (
        "003: 22.35 and 22.96 GiB usable on an L4",
        "21.96 GiB",
        "The allocator's own message.",
    ),
    (
        "003: 5 GB of offload move only embeddings and head",
        "decoder layers",
        "vLLM offloads layers in order until the amount is reached; embeddings stay on the GPU.",
    ),
    (
        "002: 12B QAT decodes 80 tokens/s on an L4",
        "28 tokens/s",
        "8.2 GB a token at 80 tokens/s are 650 GB/s; the L4 has 300. No flags are stated; speculative decoding could explain it.",
    ),
    (
        "002, 003: 664 s for 26B-A4B, 400 s for the larger 31B, both over FUSE",
        "both",
        "002 prefetched, and FUSE keeps no page cache, so everything was read twice; 003 loaded lazily, once.",
    ),
    (
        "003: v6e-1 takes 31B QAT",
        "it does not",
        "4-bit compressed-tensors do not load on TPU (FIT06), and bf16 needs 58 GiB.",
    ),
)
