"""Which flags compile again: by the rule of the plan, `up` and the machine's agent, and on the simulated server, flag by flag."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from gemma_serving.contracts.compile_cache import programs_key
from gemma_serving.contracts.server_change import ServerChange, changed_values, flags_of
from gemma_serving.contracts.serving_document import ServingDocument
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.settings.vllm_args import OPTIONS, VllmOptions, vllm_arguments
from localcloud.vllm.arguments import parse
from localcloud.vllm.boot import plan as start_of
from localcloud.vllm.settings import read
from tests.agreement.simulated_stacks import served
from tests.records import replace

STACK: Final = "tpu-v6e1"
OTHERS: Final[Mapping[str, object]] = {
    "tensor_parallel_size": 2, "data_parallel_size": 2, "dtype": "float16", "quantization": "fp8", "kv_cache_dtype": "fp8", "tpu_quantization": "qwix-fp8",
    "gpu_memory_utilization": 0.8, "max_model_len": 8192, "max_num_seqs": 8, "max_num_batched_tokens": 8192, "block_size": 64,
    "enforce_eager": True, "cpu_offload_gib": 1.0, "enable_prefix_caching": False, "async_scheduling": False,
    "disable_chunked_mm_input": False, "limit_mm_per_prompt": {"image": 2, "audio": 1, "video": 1}, "image_tokens": 560,
    "max_image_tokens": 1120, "enable_auto_tool_choice": False, "tool_call_parser": "hermes", "reasoning_parser": "qwen3",
    "chat_template": "template_chatml.jinja", "thinks_by_default": True, "load_format": "auto", "safetensors_load_strategy": "eager",
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3}, "lora_adapters": {"a": "org/a"}, "max_lora_rank": 32,
    "max_loras": 2, "trust_remote_code": True, "served_model_name": "other", "allowed_media_domains": ("a.org",),
    "extra_args": ("--max-logprobs=5",),
}  # fmt: skip
"""Another value of each option of the planner than the stack has."""

NOT_STARTED: Final = frozenset({"tensor_parallel_size", "data_parallel_size", "quantization", "lora_adapters"})
"""Options with which the server does not start here: the product of the first two is the number of chips, and a TPU converts no
weights and loads no adapter."""


def words_of(options: VllmOptions) -> tuple[str, ...]:
    return vllm_arguments(options, model_or_path="google/gemma-4-E2B-it")


def document(words: tuple[str, ...], environment: Mapping[str, str]) -> ServingDocument:
    return ServingDocument(
        image="i@sha256:1",
        command=("vllm", "serve"),
        arguments=words,
        environment=environment,
        secret_environment={},
        port=8000,
    )


def cache_of(words: tuple[str, ...], environment: Mapping[str, str], folder: Path) -> str | None:
    """Return the name of the simulated server's cached programs; None if it compiles none."""
    around = read({**environment, "VLLM_SIM_ACCELERATOR": "v6e-1", "VLLM_SIM_PATHS": f'{{"/": "{folder}"}}'})
    start = start_of(parse(["vllm", "serve", *words]), around)
    assert start.capacity is not None, start.steps[-1].error
    return next((step.cache_file.name for step in start.steps if step.cache_file and "compile" in step.line), None)


@pytest.mark.parametrize("key", OPTIONS)
def test_the_plan_and_the_simulated_server_agree_which_flag_compiles_again(key: str, tmp_path: Path):
    one = served(STACK)
    options, environment = one.subject.resolved.vllm, dict(plan_of(one.subject).environment)
    name = OPTIONS[key].name
    before, after = words_of(options), words_of(replace(options, **{name: OTHERS[name]}))
    change = ServerChange(changed_values(flags_of(before), flags_of(after)))
    documents = [document(words, environment) for words in (before, after)]
    assert change.compiles == (programs_key(documents[0]) != programs_key(documents[1]))
    if name in NOT_STARTED:
        return
    caches = [cache_of(words, environment, tmp_path) for words in (before, after)]
    assert change.compiles == (caches[0] != caches[1])
