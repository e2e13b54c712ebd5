"""Stacks with drawn edits, and the words that `up` would send for each.

An edit is one of the first law's (tests/planning/test_remedies.py), a part of `speculativeConfig`, or one of the settings that vLLM's validators compare.
"""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from gemma_serving.planning.data.checkpoints import find_checkpoint
from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.question.validators import fact_of
from gemma_serving.planning.settings.vllm_args import OPTIONS
from tests.planning.configured import Configured, configured
from tests.planning.test_remedies import STACKS, Values, drawn_edits

SEED: Final = 20261130
_NOT_THE_RELEASE: Final = ("image",)
"""Edits of another vLLM than the one that answers."""
METHODS: Final = (
    "ngram",
    "ngram_gpu",
    "suffix",
    "mtp",
    "gemma4_mtp",
    "draft_model",
    "eagle3",
    "dflash",
    "nonsense",
    None,
)
_OTHER_DRAFTER: Final = "google/gemma-4-E2B-it-assistant"
SPECULATION: Final[Mapping[str, Sequence[Any]]] = {
    "num_speculative_tokens": (1, 0, -1, None),
    "prompt_lookup_min": (1, 5, 0),
    "prompt_lookup_max": (2, 4, 0),
    "draft_tensor_parallel_size": (1, 2),
    "num_spec_tokens": (3,),
    "nonsense": (1,),
    "disable_padded_drafter_batch": (True,),
    "revision": ("a" * 40,),
}
"""Values to draw for a part of a map."""
_SEQUENCES: Final = "vllm.maxNumSeqs"
COMPARED: Final[Mapping[str, Sequence[Any]]] = {
    "vllm.maxNumBatchedTokens": (None, 16, 64, 512, 2_048, 2_560, 4_096, 16_384),
    "vllm.maxNumSeqs": (None, 1, 16, 64, 256, 1_024, 4_096),
    "vllm.maxModelLen": (None, 512, 2_048, 8_192, 65_536, 131_072, 262_144, 300_000),
    "vllm.blockSize": (None, 16, 32, 48, 64, 128, 256),
    "vllm.tensorParallelSize": (None, 1, 2, 3, 4, 8, 16),
    "vllm.dataParallelSize": (None, None, 1, 2, 4),
    "vllm.asyncScheduling": (None, True, False),
    "vllm.enablePrefixCaching": (None, True, False),
    "vllm.disableChunkedMmInput": (None, True, False),
    "vllm.enforceEager": (None, True),
    "vllm.kvCacheDtype": (None, "auto", "fp8", "bfloat16"),
    "vllm.cpuOffloadGib": (None, None, 5),
    "vllm.lora": (
        None,
        None,
        {"adapters": {"sql": "org/sql"}},
        {"adapters": {"sql": "org/sql"}, "rank": 64, "atOnce": 2},
    ),
    "vllm.quantization": (None, None, "fp8"),
    "vllm.dtype": (None, None, "float16"),
}
ARGUMENTS: Final = (
    "--no-enable-chunked-prefill",
    "--pipeline-parallel-size=2",
    "--decode-context-parallel-size=2",
    "--prefill-context-parallel-size=2",
    "--data-parallel-size-local=1",
    "--enable-expert-parallel",
    "--enable-eplb",
    "--max-num-scheduled-tokens=1024",
    "--max-num-active-seqs=64",
    "--long-prefill-token-threshold=100000",
    "--scheduling-policy=priority",
    "--max-loras=4",
    "--max-cpu-loras=1",
    "--distributed-executor-backend=uni",
    "--distributed-executor-backend=mp",
    "--mm-encoder-tp-mode=data",
    "--skip-tokenizer-init",
    "--runner=pooling",
    "--generation-config=vllm",
    "--language-model-only",
    "--attention-backend=TRITON_ATTN",
    "--max-logprobs=-1",
    "--num-gpu-blocks-override=100",
    "--kv-offloading-size=4",
    "--enable-prompt-embeds",
)
"""Arguments without a key of their own."""


def speculation(stack: str, random: Random) -> Values:
    """Return a drawn map of speculative decoding: a method, a draft model, and up to two parts with another value."""
    served = find_checkpoint(STACKS[stack]["model"])
    own = f"{served.architecture}-assistant" if served is not None else None
    drafter = random.choice((own, own, None, None, _OTHER_DRAFTER))
    config: Values = {"method": random.choice(METHODS), "model": drafter, "num_speculative_tokens": 3}
    config |= {key: random.choice(SPECULATION[key]) for key in random.sample(sorted(SPECULATION), random.randint(0, 2))}
    return {key: value for key, value in config.items() if value is not None}


def compared_together(stack: str, random: Random) -> Values:
    """Return drawn values of all settings that one of vLLM's validators compares."""
    row = random.choice(data_file("validators.json")["rows"])
    names = {word for name, _, *value in row["if"] for word in (name, *value) if isinstance(word, str)}
    keys = [key for key in COMPARED if _compared(key) in names] + (
        [] if "proposed_tokens" not in names else [_SEQUENCES]
    )
    edits: Values = {key: random.choice([one for one in COMPARED[key] if one is not None]) for key in keys}
    if any("speculative" in name or "proposed" in name for name in names):
        edits |= {"vllm.speculativeConfig": speculation(stack, random), "vllm.speculative": None}
    if "enable_lora" in names:
        edits["vllm.lora"] = {"adapters": {"sql": "org/sql"}}
    flags = {
        fact: word
        for word in random.sample(ARGUMENTS, len(ARGUMENTS))
        if (fact := fact_of(word.partition("=")[0].replace("--no-", "--"))) in names
    }
    return edits | ({"vllm.extraArgs": [*flags.values()]} if flags else {})


def _compared(key: str) -> str:
    """Return the fact that a key of COMPARED states; empty for a block."""
    option = OPTIONS.get(key.removeprefix("vllm."))
    return option.name if option is not None else ""


def edits_of(stack: str, random: Random) -> Values:
    """Return drawn edits of a stack."""
    edits: Values = {}
    if random.random() < 0.4:  # noqa: PLR2004 - the share of the first law's edits
        edits |= drawn_edits(stack, random, 2, without=_NOT_THE_RELEASE)
    if random.random() < 0.35:  # noqa: PLR2004 - the share of one validator's settings
        return edits | compared_together(stack, random)
    edits |= {key: random.choice(COMPARED[key]) for key in random.sample(sorted(COMPARED), random.randint(0, 2))}
    if random.random() < 0.3:  # noqa: PLR2004 - the share of speculation
        edits |= {"vllm.speculativeConfig": speculation(stack, random), "vllm.speculative": None}
    if random.random() < 0.3:  # noqa: PLR2004 - the share of arguments
        edits["vllm.extraArgs"] = random.sample(ARGUMENTS, random.randint(1, 2))
    return edits


def drawn(count: int) -> Iterator[tuple[str, Values, Configured]]:
    """Yield edited stacks whose model's config.json is known, `count` for each platform: the stack, its edits and its server."""
    random = Random(SEED)  # noqa: S311 - a draw of cases
    for platform in ("cloudRun", "tpu"):
        stacks = sorted(name for name, values in STACKS.items() if platform in values)
        left = count
        while left:
            stack = random.choice(stacks)
            edits = edits_of(stack, random)
            found = configured(stack, edits)
            if found is not None and is_known(found.model):
                left -= 1
                yield stack, edits, found


def is_known(model: str) -> bool:
    """Return whether the catalog has a model's config.json."""
    found = find_checkpoint(model)
    return found is not None and found.scheme in {"bf16", "w4a16"}
