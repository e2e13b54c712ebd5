"""Entry of the judge's process: reads a request, builds the server, sends events. See `dev/judges/tpu_compiler/child.py` for the other side."""

import json
import os
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from dev.judges.tpu_compiler.server.events import Events, take_standard_output, words_of

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_NAME": "none",
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "NUM_PRECOMPILE_WORKERS": "1",
    # A machine with chips: JAX appends the flag, and tpu-inference finds the size by asking a chip.
    "LIBTPU_INIT_ARGS": "--xla_tpu_use_enhanced_launch_barrier=true",
    "SC_ALLREDUCE_ALLGATHER_OFFLOAD_MIN_BYTES": "134217728",
}


def main(request_path: str) -> None:
    """Judge the request in a file. The answer is the events; the exit code is 0 if there is one."""
    events = take_standard_output()
    request = json.loads(Path(request_path).read_text())
    os.environ.update(request["environment"])
    os.environ.update(ENVIRONMENT, TPU_ACCELERATOR_TYPE=request["accelerator_type"])
    try:
        _judge(request, events)
    except Exception as error:  # noqa: BLE001 - whatever upstream raises is an answer
        traceback.print_exc()
        _send(events, error)


def _send(events: Events, error: Exception) -> None:
    from dev.judges.tpu_compiler.server.refusals import is_refusal  # noqa: PLC0415 - imports vLLM, after the environment is set

    if not is_refusal(error):
        events.send("failed", stage=events.current_stage, words=f"{type(error).__name__}: {words_of(error)}")
        return
    program = getattr(error, "program", "")
    stage = "program" if program or events.current_stage == "programs" else events.current_stage
    events.send("refused", stage=stage, program=program, words=words_of(error))


def _judge(request: dict[str, Any], events: Events) -> None:
    events.stage("import")
    # flax and torchax keep JAX's own jit: their programs run on this machine's processor.
    for module in ("flax.nnx", "torchax"):
        import_module(module)

    from dev.judges.tpu_compiler.server.devices import describe_slice  # noqa: PLC0415 - imports JAX, after the environment is set
    from dev.judges.tpu_compiler.server.programs import Programs, let_jit_take_shapes  # noqa: PLC0415 - the same

    events.stage("devices")
    devices = describe_slice(request["topology"], request["chips_per_host"])
    programs = Programs(events)
    let_jit_take_shapes(programs)
    from dev.judges.tpu_compiler.server.build import build  # noqa: PLC0415 - after JAX takes shapes

    build(request, events, programs, devices)
