"""A stand-in for the interpreter of the wheels: prints events, and writes down what it was given."""

import json
import sys
from pathlib import Path

BUILT = {
    "event": "built",
    "architecture": "Gemma4ForConditionalGeneration",
    "path": "jax",
    "weights_gib": 8.970,
    "kv_gib": 19.143,
    "kv_blocks": 4356,
    "block_size": 256,
    "kv_dtype": "bfloat16",
    "sequences": 256,
    "mesh": {"data": 1, "model": 1},
    "token_paddings": [16, 4096],
    "request_paddings": [8, 256],
    "replicated": [{"name": "vision_tower.patch_embedder.position_embedding_table", "mib": 30.0}],
    "versions": {"vllm-tpu": "0.30.0", "tpu-inference": "0.29.0.dev20260924", "jax": "0.11.0", "libtpu": "0.0.44"},
    "platform_version": "PJRT C API\nTFRT TPU v6 lite",
}
DONE = {"event": "done", "seconds": 214.5, "cpu_s": 300.1, "peak_memory_gib": 4.2}
TOTAL = {"event": "programs", "total": 3, "all": 199, "held_gib": 0.261}
REFUSED = {
    "event": "refused",
    "stage": "program",
    "program": "backbone (4,096 tokens)",
    "words": "exceeds available HBM (31.24G)",
}


def program(name, tokens=None, sequences=None, **figures):
    values = {
        "arguments_gib": 28.1,
        "temporaries_gib": 0.586,
        "outputs_gib": 19.1,
        "aliased_gib": 19.1,
        "code_mib": 55.0,
    }
    return {
        "event": "program",
        "name": name,
        "tokens": tokens,
        "sequences": sequences,
        **values,
        "flops": 1.2e13,
        "seconds": 175.2,
        "error": "",
        **figures,
    }


PROGRAMS = [program("backbone", 4096), program("backbone", 16, temporaries_gib=0.046), program("sample", None, 256)]
STAGES = [
    {"event": "stage", "name": name, "seconds": 1.5}
    for name in ("import", "devices", "config", "runner", "weights", "kv-cache")
]


def answered(**built):
    """Return the events of a complete answer."""
    return [*STAGES[:5], {**BUILT, **built}, STAGES[5], TOTAL, *PROGRAMS, DONE]


def interpreter(folder: Path, events, end: str = "") -> Path:
    """Return an executable that prints events, and then does what `end` says. given.json has its request and environment."""
    path = folder / "python"
    lines = "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in events)
    path.write_text(
        f"""#!{sys.executable}
import json, os, signal, sys, time
request = open(sys.argv[-1]).read()
model = json.load(open(json.loads(request)["model_dir"] + "/config.json"))
with open({str(folder / "given.json")!r}, "w") as file:
    json.dump({{"arguments": sys.argv[1:], "request": json.loads(request), "config": model, "environment": dict(os.environ)}}, file)
print("a warning of vLLM", file=sys.stderr)
sys.stdout.write({lines!r})
sys.stdout.flush()
{end}
"""
    )
    path.chmod(0o755)
    return path


def given(folder: Path):
    """Return what the interpreter was given; None if it was not started."""
    path = folder / "given.json"
    return json.loads(path.read_text()) if path.exists() else None
