"""Smoke checks against a real vLLM with random weights, plain and with features. Each check has the verdict that such weights must get.

Random weights do not know the capital of France and fill a JSON string up to the limit. The server's actions are compared. It streams, counts,
accepts a tool's result, serves an adapter under its name, proposes tokens, and accepts a prompt of the whole context.
"""

import json
import os
import struct
import sys
import tomllib
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from dev.judges.planted import refuse_planted
from dev.judges.real_vllm.environment import HERE, MODEL, ROOT, RealVllmError, RealVllmHome, print_progress
from dev.judges.real_vllm.judge import RealVllmPart
from dev.judges.real_vllm.server import DIRECT, HOST, MAX_MODEL_LEN, RealVllmCores, run_tool, running_server
from gemma_serving.planning.data.tables import Table
from gemma_serving.planning.settings.vllm_args import VllmOptions, vllm_arguments

ADAPTERS: Final[Mapping[str, bytes]] = {"sql": b"\x00\x00", "poems": b"\x23\x3c"}
"""The weight of each adapter, as bfloat16: 0 changes nothing, and 0.01 changes the answers."""
RANK: Final = 8
_RESPONSE_LIMIT_S: Final = 120.0
_LAYERS: Final = 5
"""Layers with sliding attention. The last one has wider heads."""
_SHAPES: Final = {"lora_A": (RANK, 64), "lora_B": (128, RANK)}
"""Shapes of an adapter of the first projection of the tiny model: 64 wide, four heads of 32."""
FEATURES: Final = {"tools": True, "thinking": True, "adapters": [*ADAPTERS], "speculation": "n-gram", "draftTokens": 3}
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
"""Verdict and words of the result of each check: of all checks on a server without features, of some on one with features, of all on a stack's."""


def smoke_faults(
    report: Mapping[str, Any], part: str, others: Mapping[str, tuple[str, str]] | None = None
) -> list[str]:
    """Return each check of `scripts.smoke --json` with an unexpected result. `others`: results that differ from those of the part."""
    found = {str(check["name"]): check for check in cast("list[dict[str, Any]]", report["checks"])}
    faults = [
        f"{part}: the check '{name}' is new. Add its verdict for a random model to dev/judges/real_vllm/verdicts.toml."
        for name in sorted(found.keys() - VERDICTS["smoke"].keys() - VERDICTS[part].keys())
    ]
    for name, (verdict, words) in {**VERDICTS[part], **(others or {})}.items():
        check = found.get(name)
        if check is None:
            faults.append(f"{part}: the check '{name}' is missing")
            continue
        said = f"{check['measured']} {check['detail']}".strip()
        if verdict not in ("any", check["verdict"]) or words not in said:
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
    """Run the checks against a server with adapters, n-grams and both parsers, and its /v1/responses. Raises RealVllmError."""
    folder = home.results / "adapters"
    for name, weight in ADAPTERS.items():
        write_adapter(folder / name, rank=RANK, weight=weight)
    print_progress("running the smoke checks of features")
    with running_server(home, cores, "features", arguments=arguments(MODEL, folder)[3:]) as url:
        checked = check_smoke(home, url, cores, "features", "--agent", "--features", json.dumps(FEATURES))
        faults = check_responses(url)
    lines = (*checked.lines, "features: /v1/responses gave the same text in one piece and as a stream.")
    return RealVllmPart(lines=checked.lines if faults else lines, faults=[*checked.faults, *faults])


def check_responses(url: str) -> list[str]:
    """Return what is wrong with /v1/responses in one piece and as a stream, which the smoke checks and the simulated server leave out."""
    body = {"model": MODEL, "input": "Say hello.", "max_output_tokens": 16, "temperature": 0}
    texts: list[str] = []
    for stream in (False, True):
        data = json.dumps({**body, "stream": stream}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/responses", data, headers)  # noqa: S310 - loopback
        try:
            with DIRECT.open(request, timeout=_RESPONSE_LIMIT_S) as answer:
                texts.append(answer.read().decode())
        except OSError as error:
            return [f"features: /v1/responses with stream {stream}: {error}"]
    return responses_faults(json.loads(texts[0]), texts[1])


def responses_faults(whole: Mapping[str, Any], streamed: str) -> list[str]:
    """Return how a streamed response differs from the same one in one piece."""
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    text = "".join(part["text"] for item in whole["output"] for part in item.get("content") or ())
    joined = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    last = events[-1]["type"] if events else "no event"
    faults = [] if text else ["features: /v1/responses returned no text"]
    faults += [] if joined == text else [f"features: the stream of /v1/responses has {joined!r} instead of {text!r}"]
    return faults if last == "response.completed" else [*faults, f"features: /v1/responses ends with {last}"]


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


def arguments(model: str, folder: Path) -> Sequence[str]:
    """Return the words after `vllm serve`: the model, host and port, then the options. `folder` has the adapters."""
    adapters = {name: str(folder / name) for name in ADAPTERS}
    options = replace(_OPTIONS, lora_adapters=adapters, max_lora_rank=RANK, max_loras=1)
    return vllm_arguments(options, model_or_path=model, host=HOST)


def write_adapter(folder: Path, *, rank: int, weight: bytes) -> None:
    """Write a LoRA adapter for the tiny model, in the format of PEFT. `weight`: each of its weights."""
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
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + weight * (size // 2))
    config = {"r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj"], "bias": "none", "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(config) + "\n", encoding="utf-8")


def planted_lie() -> None:
    """Refuse random weights that pass each check, and a stream without the response's text."""
    passed = [
        {"name": name, "verdict": "passed", "measured": words, "detail": ""}
        for name, (_, words) in VERDICTS["smoke"].items()
    ]
    report = {"checks": passed, "simulated": None}
    refuse_planted("random weights know each answer", lambda: smoke_faults(report, "smoke"))
    whole = {"output": [{"content": [{"text": "Hi."}]}]}
    end = 'data: {"type": "response.completed"}'
    refuse_planted("a stream without text has the text", lambda: responses_faults(whole, end))
