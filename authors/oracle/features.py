"""Smoke checks of features against a real vLLM: adapters, speculative decoding, tools, thinking, and the whole context.

The weights are random, so a check passes, warns or fails as they must. What is compared is what the server does: it accepts a tool's result,
serves an adapter under its name, proposes tokens, and accepts a prompt of the whole context.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from authors.oracle.clients import smoke_report
from authors.oracle.environment import MODEL, OracleHome, OracleSay
from authors.oracle.server import HOST, MAX_MODEL_LEN, OracleCores, free_port, running_server
from planning.question.vllm_args import VllmOptions, vllm_arguments

ADAPTER: Final = "sql"
RANK: Final = 8
_LAYERS: Final = 5
"""Layers with sliding attention. The last one has wider heads."""
_SHAPES: Final = {"lora_A": (RANK, 64), "lora_B": (128, RANK)}
"""Shapes of an adapter of the first projection of the tiny model: 64 wide, four heads of 32."""
FEATURES: Final = {"tools": True, "thinking": True, "adapters": [ADAPTER], "speculation": "n-gram", "draftTokens": 3}
_OPTIONS: Final = VllmOptions(
    max_model_len=MAX_MODEL_LEN,
    enable_auto_tool_choice=True,
    tool_call_parser="gemma4",
    reasoning_parser="gemma4",
    speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
)
FEATURE_VERDICTS: Final[Mapping[str, tuple[str, str]]] = {
    "tool result": ("failed", "the response lacks the tool's number"),
    "tools with thinking": ("failed", "no tool call"),
    "schema with thinking": ("failed", "the response"),
    "schema instructions": ("warned", "the system message reached the model"),
    "image": ("skipped", "no image input"),
    "two images": ("skipped", "no image input"),
    "sound": ("skipped", "no audio input"),
    "video": ("skipped", "no video input"),
    "media limits": ("passed", "1 images: 400, 1 videos: 400"),
    "context length": ("warned", "the whole prompt was accepted"),
    "adapters": ("passed", "unknown name: 404"),
    "speculation": ("warned", "proposed"),
}
"""Verdict for random weights, and words of the result. The model has no encoders: its image processor needs torchvision, which is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureComparison:
    """Number of checks with the expected result, and the others as sentences."""

    as_expected: int
    faults: tuple[str, ...]


def check_features(home: OracleHome, cores: OracleCores, say: OracleSay) -> FeatureComparison:
    """Run the checks against a server with an adapter, n-grams and both parsers. Raises OracleError."""
    folder = write_adapter(home.results / "adapter", rank=RANK)
    say("running the smoke checks of features")
    port = free_port(0)
    with running_server(home, port, cores, say, name="features", arguments=arguments(MODEL, folder, port)[1:]) as url:
        report = smoke_report(url, home.results / "features-smoke.log", cores, "--features", json.dumps(FEATURES))
    faults = feature_faults(report)
    return FeatureComparison(as_expected=len(FEATURE_VERDICTS) - len(faults), faults=tuple(faults))


def arguments(model: str, adapter: Path, port: int) -> Sequence[str]:
    """Return the words after `vllm serve`."""
    options = replace(_OPTIONS, lora_adapters={ADAPTER: str(adapter)}, max_lora_rank=RANK, max_loras=1)
    return vllm_arguments(options, model_or_path=model, host=HOST, port=port)


def feature_faults(report: Mapping[str, Any]) -> list[str]:
    """Return each check of `scripts.smoke --json` with an unexpected result."""
    found = {str(check["name"]): check for check in cast("list[dict[str, Any]]", report["checks"])}
    faults: list[str] = []
    for name, (verdict, words) in FEATURE_VERDICTS.items():
        check = found.get(name)
        if check is None:
            faults.append(f"features: the check '{name}' is missing")
            continue
        said = f"{check['measured']} {check['detail']}".strip()
        if check["verdict"] != verdict or words not in said:
            faults.append(f"features: '{name}' must be {verdict} with '{words}', but is {check['verdict']}: {said}")
    return faults


def write_adapter(folder: Path, *, rank: int) -> Path:
    """Write a LoRA adapter of zeros for the tiny model, in the format of PEFT, and return its folder."""
    tensors: dict[str, object] = {}
    size = 0
    for layer in range(_LAYERS):
        for part, shape in _SHAPES.items():
            end = size + 2 * shape[0] * shape[1]
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.{part}.weight"
            tensors[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, end]}
            size = end
    head = json.dumps(tensors).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(size))
    config = {"r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj"], "bias": "none", "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(config) + "\n", encoding="utf-8")
    return folder
