"""Part `tpu-server`: a TPU stack whose machine runs the real vLLM in a container of a real Docker."""

import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from contracts.exit_codes import ExitCode
from contracts.guest_attributes import COMPILING, LOADING, PULLING_IMAGE, READY, STARTING
from judges.real.docker_image import REAL_SERVER
from judges.real.docker_machine import CONTAINER, KILLED, RealMachines, real_machines
from judges.real.home import RealHome
from judges.real.rows import JudgeReport, Row, require, wait_until
from judges.real.vllm_life import (
    PROGRAM,
    REFUSED,
    SEQUENCES,
    VLLM_FOLDER,
    Steps,
    chat,
    installed,
    judge_steps,
    refused_up,
    set_aside,
    smoke,
    version,
    without_refused,
)

STACK: Final = "tpu-v6e1"
SPEED: Final = 5.0
"""vLLM starts in 30 to 100 real seconds, and the agent's waits are in real time."""
PHASES: Final = (STARTING, PULLING_IMAGE, LOADING, COMPILING, READY)
"""Phases that the agent publishes from Docker's answers and from vLLM's log lines. The tiny model is not downloaded."""
SMOKE: Final = {"options in effect": "warned"}
"""Verdicts that differ from those of server.toml: a processor takes this stack's type of KV cache, and its size is not the planned one."""
TINY_MODEL_LEN: Final = 8192
_ENGINE: Final = "VLLM::EngineCore"


@dataclass(slots=True, kw_only=True)
class TpuServerLife:
    """The steps of one stack, in order."""

    machines: RealMachines
    served: str = ""
    """Hash of the document that serves."""

    def steps(self) -> Steps:
        """Return each claim with its step, which returns notes or raises DifferenceError."""
        return (
            (f"`gemma up {STACK}`: vLLM takes the stack's words and is ready in the container", self._up),
            ("the agent reads the phases from Docker and from vLLM's log", self._phases),
            ("`gemma smoke` through the tunnel: each check that random weights can pass", self._smoke),
            ("`gemma chat` streams an answer", self._chat),
            ("`gemma bench`: each request completes", self._bench),
            ("a changed flag: a new container on the same machine, vLLM ends in order", self._change),
            ("a refused flag is rolled back, with vLLM's words", self._refused),
            ("an engine that is killed: the agent starts the server again", self._crash),
            ("`gemma teardown` leaves nothing", self._teardown),
        )

    def _up(self) -> list[str]:
        self.machines.project.pulumi("stack", "init", STACK)
        self.machines.project.configure(STACK, vllm__maxModelLen=str(TINY_MODEL_LEN))
        self.machines.project.gemma("up", STACK, "--yes")
        self.served = self._hash()
        return [set_aside(self._log())]

    def _phases(self) -> list[str]:
        text = self.machines.project.gemma("logs", STACK, "--lines", "5000")
        found = re.findall(r"agent +Document \w+: ([^.:]+)", text)
        missing = [phase for phase in PHASES if phase not in found]
        require(not missing, f"the phases {missing} were not published: {found}")
        return [", ".join(dict.fromkeys(found))]

    def _smoke(self) -> list[str]:
        return smoke(self.machines.project, STACK, SMOKE)

    def _chat(self) -> list[str]:
        return chat(self.machines.project, STACK)

    def _bench(self) -> list[str]:
        words = ("--concurrency=2", "--input-tokens=128", "--output-tokens=32", "--requests=8")
        found = self.machines.project.gemma_json("bench", STACK, *words, allowed=(ExitCode.DONE, ExitCode.FAILED))
        (point,) = found["points"]
        require(point["completed"] == point["point"]["requests"], f"{point['completed']} requests completed")
        return [f"{point['output_throughput']:.0f} tok/s"]

    def _change(self) -> list[str]:
        before, began_s = self._inspect("{{.Id}}"), time.time()
        self.machines.project.configure(STACK, vllm__maxNumSeqs=str(SEQUENCES))
        self.machines.project.gemma("up", STACK, "--yes")
        require(self._inspect("{{.Id}}") != before, "the container is the old one")
        require(f"'max_num_seqs': {SEQUENCES}," in self._log(), f"the new server has no max_num_seqs {SEQUENCES}")
        self.served = self._hash()
        codes = self.machines.exit_codes(before, began_s)
        require(len(codes) == 1 and codes != [KILLED], f"the old server ended with {codes}, so it was killed")
        return [f"the old server ended with {codes[0]}"]

    def _refused(self) -> list[str]:
        project = self.machines.project
        words = refused_up(project, STACK)
        require(REFUSED in project.gemma("logs", STACK, "--lines", "5000"), "vLLM's log does not name the option")
        require(self._hash() == self.served, "the former document does not serve")
        without_refused(project, STACK)
        return [words]

    def _crash(self) -> list[str]:
        before = self._inspect("{{.Id}}")
        listed = self.machines.daemon.docker("top", CONTAINER, "-eo", "pid,args").stdout.splitlines()
        engines = [int(line.split()[0]) for line in listed if _ENGINE in line]
        require(bool(engines), f"no process of an engine was found: {listed}")
        for process_id in engines:
            os.kill(process_id, signal.SIGKILL)
        wait_until(lambda: self._inspect("{{.Id}}") not in ("", before), "a new container")
        wait_until(lambda: self._cloud().get("phase") == READY, "a server that is ready again")
        text = self.machines.project.gemma("logs", STACK, "--lines", "5000")
        reasons = re.findall(r"agent +(Document \w+: retrying[^\n]*)", text)
        return [reasons[-1][:200] if reasons else "no reason was published"]

    def _teardown(self) -> list[str]:
        self.machines.project.gemma("teardown", STACK, "--yes")
        left = self.machines.daemon.docker("ps", "--all", "--quiet").stdout.split()
        require(not left, f"containers are left: {left}")
        return []

    def _cloud(self) -> Mapping[str, Any]:
        return self.machines.cloud_facts(STACK)

    def _hash(self) -> str:
        return str(self._cloud()["running"])

    def _inspect(self, template: str) -> str:
        return self.machines.daemon.docker("inspect", f"--format={template}", CONTAINER).stdout.strip()

    def _log(self) -> str:
        found = self.machines.daemon.docker("logs", CONTAINER)
        return found.stdout + found.stderr


def judge_tpu_server(home: RealHome) -> Sequence[Row]:
    """Return the rows of one life of a TPU stack with the real vLLM."""
    vllm = installed(home)
    folder = vllm.folder.resolve()
    variables = {REAL_SERVER: str(PROGRAM), VLLM_FOLDER: str(folder)}
    mounts = (str(folder), str(PROGRAM.parent))
    with real_machines(home, name="tpu", stack=STACK, speed=SPEED, variables=variables, mounts=mounts) as machines:
        report = JudgeReport(f"vLLM in Docker {machines.daemon.version}", version(vllm))
        judge_steps(report, TpuServerLife(machines=machines).steps())
        report.not_judged(
            "programs for a TPU, its memory and its speed", "no TPU; gemma plan --compile judges programs"
        )
        return report.rows
