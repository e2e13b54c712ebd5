"""Smoke checks against a real vLLM with random weights, plain and with features. Each check has the verdict that such weights must get.

Random weights do not know the capital of France and fill a JSON string up to the limit. The server's actions are compared. It streams, counts,
accepts a tool's result, serves an adapter under its name, proposes tokens, and accepts a prompt of the whole context.
"""

import json
import os
import struct
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from gemma_serving.planning.data.tables import Table
from gemma_serving.planning.settings.vllm_args import VllmOptions, vllm_arguments
from judges.real_vllm.environment import HERE, MODEL, ROOT, RealVllmError, RealVllmHome, print_progress
from judges.real_vllm.judge import RealVllmPart
from judges.real_vllm.server import HOST, MAX_MODEL_LEN, RealVllmCores, run_tool, running_server

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
VERDICTS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = Table(
    lambda: tomllib.loads((HERE / "verdicts.toml").read_text(encoding="utf-8"))
)
"""Verdict and words of the result of each check: of all checks on a server without features, and of some on one with features."""


def smoke_faults(report: Mapping[str, Any], part: str) -> list[str]:
    """Return each check of `scripts.smoke --json` with an unexpected result."""
    found = {str(check["name"]): check for check in cast("list[dict[str, Any]]", report["checks"])}
    faults = [
        f"{part}: the check '{name}' is new. Add its verdict for a random model to judges/real_vllm/verdicts.toml."
        for name in found.keys() - VERDICTS["smoke"].keys()
    ]
    for name, (verdict, words) in VERDICTS[part].items():
        check = found.get(name)
        if check is None:
            faults.append(f"{part}: the check '{name}' is missing")
            continue
        said = f"{check['measured']} {check['detail']}".strip()
        if check["verdict"] != verdict or words not in said:
            wanted = f"{verdict} with '{words}'" if words else verdict
            faults.append(f"{part}: '{name}' must be {wanted}, but is {check['verdict']}: {said}")
    if report["simulated"] is not None:
        faults.append(f"{part}: the server reports that it is simulated ({report['simulated']})")
    return faults


def check_smoke(home: RealVllmHome, url: str, cores: RealVllmCores, part: str, *more: str) -> RealVllmPart:
    """Run `scripts.smoke` with more options and judge its report. Raises RealVllmError."""
    log = home.results / f"{part}-checks.log"
    command = [sys.executable, "-m", "scripts.smoke", "--url", url, "--model", MODEL]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--json", *more]
    text = run_tool(command, ROOT, os.environ, log, cores, allowed=(0, 1))
    try:
        faults = smoke_faults(json.loads(text), part)
    except (ValueError, KeyError) as error:
        raise RealVllmError(f"scripts.smoke printed no report ({error!r}). See {log}.") from None
    expected = len(VERDICTS[part]) - len(faults)
    return RealVllmPart(
        lines=(f"{part}: {expected} checks had the expected result with random weights.",), faults=faults
    )


def check_features(home: RealVllmHome, cores: RealVllmCores) -> RealVllmPart:
    """Run the checks against a server with an adapter, n-grams and both parsers. Raises RealVllmError."""
    folder = write_adapter(home.results / "adapter", rank=RANK)
    print_progress("running the smoke checks of features")
    with running_server(home, cores, "features", arguments=arguments(MODEL, folder)[3:]) as url:
        return check_smoke(home, url, cores, "features", "--features", json.dumps(FEATURES))


def check_chat(home: RealVllmHome, url: str, cores: RealVllmCores) -> RealVllmPart:
    """Send one prompt through the proxy of `scripts.connect chat`, which streams the response."""
    log = home.results / "chat.log"
    command = [
        sys.executable,
        "-m",
        "scripts.connect",
        "chat",
        "--url",
        url,
        "--max-tokens",
        "32",
        "Say hello.",
    ]
    text = run_tool(command, ROOT, os.environ, log, cores)
    return RealVllmPart(lines=(), faults=() if text.strip() else (f"connect chat: no text was received, see {log}",))


def arguments(model: str, adapter: Path) -> Sequence[str]:
    """Return the words after `vllm serve`: the model, host and port, then the options."""
    options = replace(_OPTIONS, lora_adapters={ADAPTER: str(adapter)}, max_lora_rank=RANK, max_loras=1)
    return vllm_arguments(options, model_or_path=model, host=HOST)


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
