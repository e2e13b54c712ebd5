"""Part `server`: a stack on Cloud Run whose server is the real vLLM, deployed, checked, measured, changed and deleted by the shipped commands.

The local cloud is Cloud Run: it starts the container's words on the port that it chooses, probes them, and sends SIGTERM. vLLM runs on this machine's
processor with the tiny Gemma 4 of dev.judges.real_vllm. The tests follow one another.
"""

import json
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from dev.judges.planted import refuse_planted
from dev.judges.real.agent_reading import reading_of
from dev.judges.real.home import wait_until
from dev.judges.real.project import ProjectInCloud, project_in_cloud
from dev.judges.real.vllm_life import CLOUD_RUN_STACK as STACK
from dev.judges.real.vllm_life import (
    END_LIMIT_S,
    REFUSED,
    SEQUENCES,
    chat,
    installed,
    launcher,
    refused_up,
    set_aside,
    smoke,
    version,
)
from dev.judges.real_vllm.environment import RealVllmHome

SPEED = 5.0
"""A start may take 156 s: the startup probe's 780 simulated seconds. At 20 a busy machine's start of 40 to 100 s would fail it."""
GONE_LIMIT_S = 30.0


@dataclass(slots=True, kw_only=True)
class StackLife:
    """One stack's life."""

    project: ProjectInCloud
    vllm: RealVllmHome
    cloud: ExitStack
    """Ends the local cloud."""
    serving: frozenset[int] = frozenset()
    """Processes of the revision that serves, none before it was deployed."""

    def servers(self):
        """Return the processes of this run's vLLM servers and of their engines: the groups of the processes with vLLM's command line."""
        program = str(self.vllm.programs / "vllm").encode()
        service = f"K_SERVICE=gemma-{STACK}\0".encode()
        groups, leaders = {}, set()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                environment = (entry / "environ").read_bytes()
                groups[int(entry.name)] = os.getpgid(int(entry.name))
            except OSError:
                continue
            if program in command and service in environment:
                leaders.add(groups[int(entry.name)])
        return {process for process, group in groups.items() if group in leaders}

    def logs(self):
        """Return the logs of all revisions, by name."""
        return sorted((self.project.state / "logs").glob(f"gemma-{STACK}-*.log"))

    def log(self):
        """Return the log of the newest revision, empty if there is none."""
        found = self.logs()
        return found[-1].read_text(encoding="utf-8", errors="replace") if found else ""


def planted_lie():
    left = SimpleNamespace(cloud=ExitStack(), servers=lambda: {1})
    refuse_planted("a server that still runs has ended with the local cloud", lambda: test_end_of_the_cloud(left))


@pytest.fixture(scope="module")
def life(home, judge):
    vllm = installed(home)
    judge(f"vLLM {version(vllm)} as Cloud Run's container")
    variables = {"LOCALCLOUD_VLLM": str(launcher(home, vllm))}
    with ExitStack() as cloud:
        project = cloud.enter_context(project_in_cloud(home, name="server", speed=SPEED, variables=variables))
        yield StackLife(project=project, vllm=vllm, cloud=cloud)


@pytest.fixture
def deployed(life):
    if not life.serving:
        pytest.skip("the stack was not deployed")
    return life


def test_up(life, notes):
    """`gemma up l4-12b-qat`: vLLM takes the stack's words, listens on its port, answers the probe."""
    life.project.gemma("stage_model", STACK)
    life.project.gemma("save_token", STACK, "apiKey", "--generate")
    began_s = time.monotonic()
    try:
        life.project.gemma("up", STACK, "--yes")
    except AssertionError as difference:
        words = reading_of(life.log()).error
        raise AssertionError(f"vLLM: {words or 'no error in its log'}. {difference}") from None
    notes.append(f"up in {time.monotonic() - began_s:.0f} s")
    log = life.log()
    notes.append(set_aside(log))
    assert '"GET /health HTTP/1.1" 200' in log, "the startup probe's request is not in vLLM's log"
    assert "--port=8000 -> " in notes[-1], "the container's port was not 8000"
    life.serving = frozenset(life.servers())
    assert life.serving, "no process of vLLM was found"


def test_smoke(deployed, notes):
    """`gemma smoke`: each check that random weights can pass has the verdict of verdicts.toml."""
    notes.append(smoke(deployed.project, STACK))


def test_chat(deployed):
    """`gemma chat` streams an answer."""
    chat(deployed.project, STACK)


def test_bench(deployed, notes):
    """`gemma bench`: each request completes, and the tokens are vLLM's own count."""
    out = deployed.project.folder / "bench"
    words = ("--concurrency=2", "--input-tokens=128", "--output-tokens=32", "--requests=8", "--out", str(out))
    deployed.project.gemma("bench", STACK, *words, allowed=(0, 1))
    (point,) = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    wanted = point["point"]["requests"]
    assert point["completed"] == wanted, f"{point['completed']} of {wanted} requests completed"
    assert not point["failed"], f"{point['failed']} requests failed"
    for ours, theirs in (("total_output_tokens", "generation_tokens"), ("total_input_tokens", "prompt_tokens")):
        counted = point["server"][theirs]
        assert point[ours] == counted, f"{ours} {point[ours]}, but vLLM counted {counted:g}"
    notes.append(f"{point['output_throughput']:.0f} tok/s; the verdict is invalid: faster than an L4 can be")


def test_change(deployed, notes):
    """A changed flag is a new revision, and SIGTERM ends the old server within 10 s."""
    old, old_log = deployed.serving, max(deployed.logs(), key=lambda path: path.stat().st_mtime)
    deployed.project.configure(STACK, vllm__maxNumSeqs=str(SEQUENCES))
    deployed.project.gemma("up", STACK, "--yes")
    assert f"'max_num_seqs': {SEQUENCES}," in deployed.log(), f"the new server has no max_num_seqs {SEQUENCES}"
    wait_until(lambda: not old & deployed.servers(), "the end of the old server", GONE_LIMIT_S)
    deployed.serving = frozenset(deployed.servers())
    ended = old_log.read_text(encoding="utf-8", errors="replace")
    assert "[shutdown] API server: shutdown triggered" in ended, "the old server did not get SIGTERM"
    late = f"the old server was killed before its end, {END_LIMIT_S:.0f} s"
    assert "Application shutdown complete" in ended, late
    notes.append("the old server shut down in order")


def test_refused(deployed, notes):
    """A refused flag fails the revision with vLLM's words, and the old revision serves."""
    notes.append(refused_up(deployed.project, STACK))
    log = deployed.log()
    assert REFUSED in log, "vLLM's log does not name the option"
    assert "Container called exit(2)" in log, "vLLM did not exit with 2"
    assert deployed.serving & deployed.servers(), "the old revision does not run"
    chat(deployed.project, STACK)


def test_teardown(deployed, notes):
    """`gemma teardown` leaves nothing."""
    deployed.project.gemma("teardown", STACK, "--yes")  # exit code 0: every list was read, and no resource is left
    took_s = wait_until(lambda: not deployed.servers(), "the end of the server", GONE_LIMIT_S)
    notes.append(f"vLLM gone after {took_s:.0f} s")


def test_end_of_the_cloud(life):
    """Nothing of it runs after the local cloud has ended."""
    life.cloud.close()
    left = life.servers()
    assert not left, f"processes {sorted(left)} still run"
