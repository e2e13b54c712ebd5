"""Part `tpu-server`: a TPU stack whose machine runs the real vLLM in a container of a real Docker. The tests follow one another."""

import os
import re
import signal
import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from dev.judges.planted import refuse_planted
from dev.judges.real.docker_image import REAL_SERVER
from dev.judges.real.docker_machine import CONTAINER, KILLED, RealMachines, real_machines
from dev.judges.real.home import wait_until
from dev.judges.real.vllm_life import (
    PROGRAM,
    REFUSED,
    SEQUENCES,
    VLLM_FOLDER,
    chat,
    installed,
    refused_up,
    set_aside,
    smoke,
    version,
    without_refused,
)
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.guest_attributes import COMPILING, LOADING, PULLING_IMAGE, READY, STARTING

STACK = "tpu-v6e1"
SPEED = 5.0
"""vLLM starts in 30 to 100 real seconds, and the agent's waits are in real time."""
PHASES = (STARTING, PULLING_IMAGE, LOADING, COMPILING, READY)
"""Phases that the agent publishes from Docker's answers and from vLLM's log lines. The tiny model is not downloaded."""
SMOKE = {"options in effect": ("warned", "")}
"""Verdicts that differ from those of verdicts.toml: a processor takes this stack's type of KV cache, and its size is not the planned one."""
TINY_MODEL_LEN = 8192
ENGINE = "VLLM::EngineCore"


@dataclass(slots=True, kw_only=True)
class TpuServerLife:
    """One stack's life."""

    machines: RealMachines
    served: str = ""
    """Hash of the document that serves, empty before the stack was deployed."""

    @property
    def project(self):
        return self.machines.project

    def facts(self):
        """Return what `gemma status --json` says of the machine."""
        return self.machines.cloud_facts(STACK)

    def log(self):
        """Return the server's log, as docker has it."""
        found = self.machines.daemon.docker("logs", CONTAINER)
        return found.stdout + found.stderr

    def lines(self):
        """Return the lines of `gemma logs`."""
        return self.project.gemma("logs", STACK, "--lines", "5000")


def planted_lie():
    daemon = SimpleNamespace(docker=lambda *_: SimpleNamespace(stdout="a-container\n"))
    left = SimpleNamespace(project=SimpleNamespace(gemma=lambda *_: ""), machines=SimpleNamespace(daemon=daemon))
    refuse_planted("a teardown that leaves a container leaves nothing", lambda: test_teardown(left))


@pytest.fixture(scope="module")
def life(home, judge):
    vllm = installed(home)
    folder = vllm.folder.resolve()
    variables = {REAL_SERVER: str(PROGRAM), VLLM_FOLDER: str(folder)}
    mounts = (str(folder), str(PROGRAM.parent))
    with real_machines(home, name="tpu", stack=STACK, speed=SPEED, variables=variables, mounts=mounts) as machines:
        judge(f"vLLM {version(vllm)} in Docker {machines.daemon.version}")
        yield TpuServerLife(machines=machines)


@pytest.fixture
def deployed(life):
    if not life.served:
        pytest.skip("the stack was not deployed")
    return life


def test_up(life, notes):
    """`gemma up tpu-v6e1`: vLLM takes the stack's words and is ready in the container."""
    life.project.pulumi("stack", "init", STACK)
    life.project.configure(STACK, vllm__maxModelLen=str(TINY_MODEL_LEN))
    life.project.gemma("up", STACK, "--yes")
    notes.append(set_aside(life.log()))
    life.served = str(life.facts()["running"])


def test_phases(deployed, notes):
    """The agent reads the phases from Docker and from vLLM's log."""
    found = re.findall(r"agent +Document \w+: ([^.:]+)", deployed.lines())
    missing = [phase for phase in PHASES if phase not in found]
    assert not missing, f"the phases {missing} were not published: {found}"
    notes.append(", ".join(dict.fromkeys(found)))


def test_smoke(deployed, notes):
    """`gemma smoke` through the tunnel: each check that random weights can pass."""
    notes.append(smoke(deployed.project, STACK, SMOKE))


def test_chat(deployed):
    """`gemma chat` streams an answer."""
    chat(deployed.project, STACK)


def test_bench(deployed, notes):
    """`gemma bench`: each request completes."""
    words = ("--concurrency=2", "--input-tokens=128", "--output-tokens=32", "--requests=8")
    found = deployed.project.gemma_json("bench", STACK, *words, allowed=(ExitCode.DONE, ExitCode.FAILED))
    (point,) = found["points"]
    assert point["completed"] == point["point"]["requests"], f"{point['completed']} requests completed"
    notes.append(f"{point['output_throughput']:.0f} tok/s")


def test_change(deployed, notes):
    """A changed flag: a new container on the same machine, vLLM ends in order."""
    before, began_s = deployed.machines.container(), time.time()
    deployed.project.configure(STACK, vllm__maxNumSeqs=str(SEQUENCES))
    deployed.project.gemma("up", STACK, "--yes")
    assert deployed.machines.container() != before, "the container is the old one"
    assert f"'max_num_seqs': {SEQUENCES}," in deployed.log(), f"the new server has no max_num_seqs {SEQUENCES}"
    deployed.served = str(deployed.facts()["running"])
    codes = deployed.machines.exit_codes(before, began_s)
    assert len(codes) == 1, f"the old server ended with {codes}"
    assert codes != [KILLED], "the old server was killed"
    notes.append(f"the old server ended with {codes[0]}")


def test_refused(deployed, notes):
    """A refused flag is rolled back, with vLLM's words."""
    notes.append(refused_up(deployed.project, STACK))
    assert REFUSED in deployed.lines(), "vLLM's log does not name the option"
    assert str(deployed.facts()["running"]) == deployed.served, "the former document does not serve"
    without_refused(deployed.project, STACK)


def test_killed_engine(deployed, notes):
    """An engine that is killed: the agent starts the server again."""
    before = deployed.machines.container()
    listed = deployed.machines.daemon.docker("top", CONTAINER, "-eo", "pid,args").stdout.splitlines()
    engines = [int(line.split()[0]) for line in listed if ENGINE in line]
    assert engines, f"no process of an engine was found: {listed}"
    for process_id in engines:
        os.kill(process_id, signal.SIGKILL)
    deployed.machines.until_new_container(before)
    wait_until(lambda: deployed.facts().get("phase") == READY, "a server that is ready again")
    reasons = re.findall(r"agent +(Document \w+: retrying[^\n]*)", deployed.lines())
    notes.append(reasons[-1][:200] if reasons else "no reason was published")


def test_teardown(deployed):
    """`gemma teardown` leaves nothing."""
    deployed.project.gemma("teardown", STACK, "--yes")
    left = deployed.machines.daemon.docker("ps", "--all", "--quiet").stdout.split()
    assert not left, f"containers are left: {left}"


@pytest.mark.skip(reason="no TPU; gemma plan --compile judges programs")
def test_programs():
    """Programs for a TPU, its memory and its speed."""
