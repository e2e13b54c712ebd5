"""vLLM's command-line flags as tables: names, types, choices.

Source: the fields of vLLM's `EngineArgs`, `AsyncEngineArgs` and `FrontendArgs` around release 0.28 (docs.vllm.ai, CLI reference).
Flags that vLLM leaves open to plug-ins (load format, tokenizer mode, executor backend) have no choices here either.
"""

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BOOLEANS: Final[frozenset[str]] = _names(
    """
    trust-remote-code skip-tokenizer-init enable-prompt-embeds enforce-eager enable-return-routed-experts
    return-sampling-mask use-fp64-gumbel enable-trace-replay disable-sliding-window disable-cascade-attn
    enable-sleep-mode enable-cumem-allocator enable-nccl-comm-suspend use-tqdm-on-load allow-deprecated-quantization
    numa-bind dcp-q-replicate data-parallel-hybrid-lb data-parallel-external-lb data-parallel-multi-port-external-lb
    enable-expert-parallel enable-batch-sharded-sampling enable-ep-weight-filter enable-elastic-ep enable-dbo
    disable-nccl-for-dp-synchronization enable-eplb disable-custom-all-reduce ray-workers-use-nsight
    enable-prefix-caching calculate-kv-scales kv-sharing-fast-prefill use-replayssm
    enable-mamba-cache-stochastic-rounding language-model-only enable-mm-embeds interleave-mm-strings
    mm-encoder-only skip-mm-profiling mm-device-do-normalize enable-lora fully-sharded-loras
    enable-tower-connector-lora specialize-active-lora enable-mixed-moe-lora-format enable-moe-shared-loras
    kv-cache-metrics cudagraph-metrics enable-layerwise-nvtx-tracing enable-mfu-metrics
    enable-logging-iteration-details jit-monitor-verbose enable-mm-processor-stats enable-chunked-prefill
    disable-chunked-mm-input scheduler-reserve-full-isl disable-hybrid-kv-cache-manager async-scheduling
    enable-flashinfer-autotune enable-bf16x3-router-gemm enable-fault-tolerance tokens-only
    fail-on-environ-validation disable-log-stats aggregate-engine-logging enable-log-requests disable-log-requests
    trust-request-chat-template return-tokens-as-token-ids enable-auto-tool-choice
    exclude-tools-when-tool-choice-none enable-prompt-tokens-details enable-per-request-metrics
    enable-server-load-tracking enable-force-include-usage enable-tokenizer-info-endpoint enable-log-outputs
    enable-log-deltas cohere-is-reasoning-model log-error-stack disable-uvicorn-access-log allow-credentials
    enable-ssl-refresh enable-request-id-headers disable-fastapi-docs enable-offline-docs
    enable-flash-late-interaction headless
    """
)

INTEGERS: Final[frozenset[str]] = _names(
    """
    seed max-logprobs safetensors-prefetch-num-threads safetensors-prefetch-block-size max-cudagraph-capture-size
    pipeline-parallel-size master-port nnodes node-rank distributed-timeout-seconds cpu-distributed-timeout-seconds
    tensor-parallel-size prefill-context-parallel-size decode-context-parallel-size dcp-kv-cache-interleave-size
    cp-kv-cache-interleave-size data-parallel-size data-parallel-rank data-parallel-start-rank
    data-parallel-size-local data-parallel-rpc-port ubatch-size dbo-decode-token-threshold
    dbo-prefill-token-threshold dp-sync-interval max-parallel-loading-workers block-size
    prefix-cache-retention-interval offload-group-size offload-num-in-group offload-prefetch-step
    max-num-seqs max-num-queued-reqs max-num-queued-tokens long-prefill-token-threshold
    mm-shm-cache-max-object-size-mb renderer-num-workers max-loras max-lora-rank max-cpu-loras num-gpu-blocks-override
    prefill-schedule-interval spec-tokens mamba-block-size prefix-match-unit replayssm-buffer-len
    mamba-cache-philox-rounds stream-interval shutdown-timeout max-log-len port data-parallel-supervisor-port
    dp-supervisor-probe-failure-threshold ssl-cert-reqs h11-max-incomplete-event-size h11-max-header-count
    api-server-count
    """
)

READABLE_INTEGERS: Final[frozenset[str]] = frozenset(
    ("max-model-len", "max-num-batched-tokens", "max-num-scheduled-tokens", "kv-cache-memory-bytes")
)
"""Whole numbers that vLLM also takes as `16k` (thousands) or `16K` (1,024s); `max-model-len` also as `auto` or -1."""

FLOATS: Final[frozenset[str]] = _names(
    """
    cpu-offload-gb gpu-memory-utilization mm-processor-cache-gb mm-encoder-fp8-scale-save-margin video-pruning-rate
    mm-ipc-gpu-memory-gb watermark kv-cache-metrics-sample kv-offloading-size dp-supervisor-probe-interval-s
    dp-supervisor-probe-timeout-s swap-space
    """
)

STRINGS: Final[frozenset[str]] = _names(
    """
    model model-weights tokenizer tokenizer-mode hf-config-path revision code-revision tokenizer-revision hf-token
    allowed-local-media-path quantization config-format generation-config model-impl io-processor-plugin load-format
    download-dir pt-load-map-location reasoning-parser reasoning-parser-plugin distributed-executor-backend
    master-addr dcp-comm-backend data-parallel-address moe-backend linear-backend all2all-backend worker-cls
    worker-extension-cls offload-backend mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
    mm-encoder-fp8-scale-save-path video-pruning-method mm-tensor-ipc mm-processor-device mm-hasher-algorithm
    lora-dtype spec-method spec-model show-hidden-metrics-for-version otlp-traces-endpoint scheduler-cls
    attention-backend mamba-backend mamba-ssu-algorithm chat-template response-role tool-call-parser
    tool-parser-plugin tool-server log-config-file cohere-format fingerprint-value host uds
    disable-access-log-for-endpoints ssl-keyfile ssl-certfile ssl-ca-certs ssl-ciphers root-path config
    """
)

LISTS: Final[frozenset[str]] = _names(
    """
    served-model-name allowed-media-domains cudagraph-capture-sizes numa-bind-nodes numa-bind-cpus device-ids
    cpu-offload-params offload-params lora-target-modules ignore-patterns collect-detailed-traces
    kv-cache-dtype-skip-layers logits-processors lora-modules api-key
    """
)
"""Flags that take one or more values."""

REPEATED: Final[frozenset[str]] = frozenset(("middleware",))
"""Flags that may be given several times, one value each."""

JSONS: Final[frozenset[str]] = _names(
    """
    hf-overrides model-class-overrides quantization-config override-generation-config pooler-config
    model-loader-extra-config structured-outputs-config eplb-config limit-mm-per-prompt media-io-kwargs
    mm-processor-kwargs default-mm-loras speculative-config diffusion-config compilation-config attention-config
    mamba-config kernel-config ir-op-priority profiler-config kv-transfer-config kv-events-config ec-transfer-config
    ec-manager-config reasoning-config additional-config fault-tolerance-config weight-transfer-config
    default-chat-template-kwargs allowed-origins allowed-methods allowed-headers
    """
)
"""Flags that take JSON, and (objects) single keys as `--flag.key value`."""

CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "runner": ("auto", "generate", "pooling", "draft", "diffusion"),
    "convert": ("auto", "none", "embed", "classify"),
    "dtype": ("auto", "half", "float16", "bfloat16", "float", "float32"),
    "kv-cache-dtype": (
        "auto",
        "float16",
        "bfloat16",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_inc",
        "fp8_ds_mla",
        "int8_per_token_head",
        "fp8_per_token_head",
        "int4_per_token_head",
        "nvfp4",
        "turboquant_k8v4",
    ),
    "logprobs-mode": ("raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs"),
    "safetensors-load-strategy": ("lazy", "eager", "prefetch", "torchao"),
    "data-parallel-backend": ("ray", "mp"),
    "expert-placement-strategy": ("linear", "round_robin"),
    "prefix-caching-hash-algo": ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor"),
    "mamba-cache-dtype": ("auto", "float32", "float16"),
    "mamba-ssm-cache-dtype": ("auto", "float32", "float16"),
    "mamba-cache-mode": ("all", "align", "none"),
    "mm-processor-cache-type": ("shm", "lru"),
    "mm-encoder-tp-mode": ("weights", "data"),
    "per-request-spec-decode-metrics": ("none", "summary", "detailed"),
    "jit-monitor-mode": ("warn", "error"),
    "scheduling-policy": ("fcfs", "priority"),
    "kv-offloading-backend": ("native", "lmcache"),
    "optimization-level": ("0", "1", "2", "3"),
    "performance-mode": ("balanced", "interactivity", "throughput"),
    "gdn-prefill-backend": ("flashinfer", "triton", "cutedsl"),
    "kda-prefill-backend": ("auto", "triton", "flashkda"),
    "chat-template-content-format": ("auto", "openai", "string"),
    "uvicorn-log-level": ("critical", "error", "warning", "info", "debug", "trace"),
    "fingerprint-mode": ("full", "hash", "custom", "none"),
}

ALIASES: Final[dict[str, str]] = {
    "quantization": "-q",
    "pipeline-parallel-size": "-pp",
    "tensor-parallel-size": "-tp",
    "decode-context-parallel-size": "-dcp",
    "prefill-context-parallel-size": "-pcp",
    "data-parallel-size": "-dp",
    "data-parallel-rank": "-dpn",
    "data-parallel-start-rank": "-dpr",
    "data-parallel-size-local": "-dpl",
    "data-parallel-address": "-dpa",
    "data-parallel-rpc-port": "-dpp",
    "data-parallel-backend": "-dpb",
    "enable-expert-parallel": "-ep",
    "compilation-config": "-cc",
    "attention-config": "-ac",
    "speculative-config": "-sc",
    "optimization-level": "-O",
    "api-server-count": "-asc",
}

REASONING_PARSERS: Final[frozenset[str]] = _names(
    """
    deepseek_r1 deepseek_v3 ernie45 gemma4 glm45 openai_gptoss granite holo2 hunyuan_a13b kimi_k2 minimax_m2 mistral
    nemotron_v3 olmo3 qwen3 seed_oss step3
    """
)
TOOL_PARSERS: Final[frozenset[str]] = _names(
    """
    deepseek_v3 deepseek_v31 deepseek_v32 ernie45 functiongemma gemma4 glm45 glm47 granite hermes hunyuan_a13b
    internlm jamba kimi_k2 llama3_json llama4_json llama4_pythonic minimax_m2 mistral olmo3 openai phi4_mini_json
    pythonic qwen3_coder qwen3_xml seed_oss step3 xlam
    """
)
