#!/usr/bin/env python3
"""Become the real vLLM of this machine's processor, with the words of a container.

The local cloud runs this file in place of its simulated server (LOCALCLOUD_VLLM). REAL_ORACLE is the folder of `real_vllm`: vLLM's environment and a tiny
Gemma 4. Only words that a processor cannot take are replaced, and one line on stderr lists them. vLLM itself refuses every other word.

Standard library only, Python 3.9 or later: it also runs in containers that have no package of this project.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

MODEL = "models/oracle/tiny-gemma-4"
MOST_TOKENS = 8192
"""Positions of the tiny model."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
PLANNED_MARK = "[simulated] start planned:"
"""The mark of localcloud.vllm: the local cloud waits for this line of a Cloud Run instance."""
_POLL_S = 0.2
_END_S = 10.0

Change = Callable[[str], str | None]
"""Returns the value that an option gets here, or None if the option is left out."""


def _same(value: str) -> str:
    return value


def _left_out(_value: str) -> None:
    return None


def _one(_value: str) -> str:
    return "1"


def _at_most_the_model(value: str) -> str:
    return str(min(int(value), MOST_TOKENS)) if value.isdecimal() else value


def _without_drafter(value: str) -> str | None:
    """Leave out a draft model, which the tiny model does not have. N-grams need none."""
    try:
        config = json.loads(value)
    except ValueError:
        return value
    return None if isinstance(config, dict) and "model" in config else value


CHANGES: "Mapping[str, Change]" = {
    "--max-model-len": _at_most_the_model,
    "--max-num-batched-tokens": _at_most_the_model,
    "--tensor-parallel-size": _one,
    "--data-parallel-size": _one,
    "--kv-cache-dtype": lambda value: "auto" if value.startswith("fp8") else value,
    "--quantization": _left_out,
    "--revision": _left_out,
    "--tokenizer-revision": _left_out,
    "--code-revision": _left_out,
    "--load-format": lambda value: value if value in ("auto", "safetensors") else "safetensors",
    "--speculative-config": _without_drafter,
    "--lora-modules": _left_out,
}
"""What a processor or the tiny model cannot take, by option."""


def options_of(words: "Sequence[str]") -> "list[list[str]]":
    """Return the words of each option: its name, and its values. A value after `=` stays in the name's word."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not found:
            found.append([word])
        else:
            found[-1].append(word)
    return found


def local_command(words: "Sequence[str]", folder: str, variables: "Mapping[str, str]") -> "tuple[list[str], list[str]]":
    """Return the words after `vllm serve` for this machine, and a text for each replacement."""
    model, *rest = words
    changes: dict[str, Change] = dict(CHANGES)
    for option, variable in (("--host", "VLLM_SIM_BIND_HOST"), ("--port", "VLLM_SIM_BIND_PORT")):
        if variables.get(variable):
            changes[option] = lambda _value, bound=variables[variable]: bound
    made, said = [str(Path(folder, MODEL))], ["model -> " + MODEL]
    for option in options_of(rest):
        name, equals, value = option[0].partition("=")
        before = value if equals else " ".join(option[1:])
        after = changes.get(name, _same)(before)
        if after == before:
            made += option
        elif after is None:
            said.append(f"{name}={before} left out")
        else:
            made.append(f"{name}={after}")
            said.append(f"{name}={before} -> {after}")
    if not any(word.partition("=")[0] == "--served-model-name" for word in rest):
        made.append(f"--served-model-name={model}")
    if "--enforce-eager" not in rest:
        made.append("--enforce-eager")
        said.append("--enforce-eager added")
    return made, said


def value_of(name: str, words: "Sequence[str]") -> str:
    """Return the value of an option, empty without it."""
    for option in options_of(words):
        given, equals, value = option[0].partition("=")
        if given == name:
            return value if equals else " ".join(option[1:])
    return ""


def environment(variables: "Mapping[str, str]", folder: str) -> "dict[str, str]":
    """Return vLLM's variables: the container's own, without the simulator's, offline."""
    own = {
        name: value
        for name, value in variables.items()
        if not name.startswith(("VLLM_SIM_", "PYTHON")) and name not in ("SSL_CERT_FILE", "REAL_ORACLE")
    }
    if variables.get("VLLM_SIM_PYTHONPATH"):
        own["PYTHONPATH"] = variables["VLLM_SIM_PYTHONPATH"]
    path = os.pathsep.join((str(Path(folder, "venv", "bin")), variables.get("PATH", os.defpath)))
    return {**own, **OFFLINE, "PATH": path, "PYTHONUNBUFFERED": "1"}


def watch(lifeline: str) -> None:
    """Start a child that kills the server's group when the local cloud has ended, or what is left of it when the server has ended."""
    server = os.getpid()
    if not lifeline or os.fork() != 0:
        return
    parent = int(lifeline[4:]) if lifeline.startswith("pid:") else 0
    while os.getppid() == server and not _has_ended(parent):
        pass
    if os.getppid() == server:
        os.kill(server, signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        while os.getppid() == server and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    if os.getpgid(0) == server:  # else the group is not the server's own
        os.killpg(server, signal.SIGKILL)
    os._exit(0)


def _has_ended(parent: int) -> bool:
    """Wait a moment, and return whether the local cloud has ended: process `parent`, or with 0 the writer of standard input."""
    if parent:
        time.sleep(_POLL_S)
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False
    ready, _, _ = select.select([0], [], [], _POLL_S)
    return bool(ready) and not os.read(0, 1024)


def main(arguments: "Sequence[str]", variables: "Mapping[str, str]") -> NoReturn:
    """Replace the words, announce the start, and become vLLM."""
    words = list(arguments)
    if words and Path(words[0]).name == "vllm":
        words = words[1:]
    folder = variables["REAL_ORACLE"]
    program = str(Path(folder, "venv", "bin", "vllm"))
    if words[:1] != ["serve"] or len(words) == 1:
        os.execve(program, [program, *words], environment(variables, folder))  # noqa: S606 - vLLM itself refuses them
    made, said = local_command(words[1:], folder, variables)
    if variables.get("K_SERVICE"):
        print(
            f"{PLANNED_MARK} port {value_of('--port', words) or '8000'}, 0 simulated seconds. The server and its times are real.",
            flush=True,
        )
    print(f"vllm_here: {'; '.join(said)}", file=sys.stderr, flush=True)
    watch(variables.get("VLLM_SIM_LIFELINE", ""))
    os.execve(program, [program, "serve", *made], environment(variables, folder))  # noqa: S606 - the same process


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
