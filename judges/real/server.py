"""A stack on Cloud Run whose server is the real vLLM: deployed, checked, measured, changed and deleted by the shipped commands.

The local cloud is Cloud Run: it starts the container's words on the port that it chooses, probes them, and sends SIGTERM. vLLM runs on this machine's
processor with the tiny Gemma 4 of judges.real_vllm.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from judges.real.agent_reading import reading_of
from judges.real.home import RealHome
from judges.real.project import ProjectInCloud, project_in_cloud
from judges.real.rows import DifferenceError, JudgeReport, Row, require, wait_until
from judges.real.vllm_life import (
    REFUSED,
    SEQUENCES,
    Steps,
    chat,
    installed,
    judge_steps,
    launcher,
    refused_up,
    set_aside,
    smoke,
    version,
)
from judges.real_vllm.environment import RealVllmHome

STACK: Final = "l4-12b-qat"
"""The Cloud Run stack whose words a processor takes except for its KV cache in fp8. With an API key it also runs the starter and the path guard."""
SPEED: Final = 5.0
"""A start may take 156 s: the startup probe's 780 simulated seconds. At 20 a busy machine's start of 40 to 100 s would fail it."""
END_LIMIT_S: Final = 10.0
"""Time between SIGTERM and SIGKILL on Cloud Run."""
_GONE_LIMIT_S: Final = 30.0


def judge_server(home: RealHome) -> Sequence[Row]:
    """Return the rows of one life of a stack with the real vLLM."""
    vllm = installed(home)
    report = JudgeReport("vLLM as Cloud Run's container", version(vllm))
    variables = {"LOCALCLOUD_VLLM": str(launcher(home, vllm))}
    with project_in_cloud(home, name="server", speed=SPEED, variables=variables) as project:
        judge_steps(report, StackLife(project=project, vllm=vllm).steps())
    left = servers(vllm)
    with report.judging("nothing of it runs after the local cloud has ended"):
        require(not left, f"processes {sorted(left)} still run")
    return report.rows


def servers(vllm: RealVllmHome) -> set[int]:
    """Return the processes of this run's vLLM servers and of their engines: the groups of the processes with vLLM's command line."""
    program = str(vllm.programs / "vllm")
    groups = dict[int, int]()
    leaders = set[int]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes()
            groups[int(entry.name)] = os.getpgid(int(entry.name))
        except OSError:
            continue
        if program.encode() in command and f"K_SERVICE=gemma-{STACK}\0".encode() in environment:
            leaders.add(groups[int(entry.name)])
    return {process for process, group in groups.items() if group in leaders}


@dataclass(slots=True, kw_only=True)
class StackLife:
    """The steps of one stack, in order."""

    project: ProjectInCloud
    vllm: RealVllmHome
    before: frozenset[int] = frozenset()
    """Processes of the revision that serves."""

    def steps(self) -> Steps:
        """Return each claim with its step, which returns notes or raises DifferenceError."""
        return (
            (f"`gemma up {STACK}`: vLLM takes the stack's words, listens on its port, answers the probe", self._up),
            ("`gemma smoke`: each check that random weights can pass has the verdict of server.toml", self._smoke),
            ("`gemma chat` streams an answer", self._chat),
            ("`gemma bench`: each request completes, and the tokens are vLLM's own count", self._bench),
            ("a changed flag is a new revision, and SIGTERM ends the old server within 10 s", self._change),
            ("a refused flag fails the revision with vLLM's words, and the old revision serves", self._refused),
            ("`gemma teardown` leaves nothing", self._teardown),
        )

    def _up(self) -> list[str]:
        self.project.gemma("stage_model", STACK)
        self.project.gemma("save_token", STACK, "apiKey", "--generate")
        began_s = time.monotonic()
        try:
            self.project.gemma("up", STACK, "--yes")
        except DifferenceError as difference:
            words = reading_of(self._log()).error
            raise DifferenceError(f"vLLM: {words or 'no error in its log'}. {difference}") from None
        took = f"up in {time.monotonic() - began_s:.0f} s"
        self.before = frozenset(servers(self.vllm))
        log = self._log()
        replaced = set_aside(log)
        require('"GET /health HTTP/1.1" 200' in log, "the startup probe's request is not in vLLM's log")
        require("--port=8000 -> " in replaced, "the container's port was not 8000")
        return [took, replaced]

    def _smoke(self) -> list[str]:
        return smoke(self.project, STACK)

    def _chat(self) -> list[str]:
        return chat(self.project, STACK)

    def _bench(self) -> list[str]:
        out = self.project.folder / "bench"
        words = ("--concurrency=2", "--input-tokens=128", "--output-tokens=32", "--requests=8", "--out", str(out))
        self.project.gemma("bench", STACK, *words, allowed=(0, 1))
        points = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
        require(len(points) == 1, f"{len(points)} points were measured")
        return [bench_note(points[0])]

    def _change(self) -> list[str]:
        old, old_log = self.before, self._newest_log()
        self.project.configure(STACK, vllm__maxNumSeqs=str(SEQUENCES))
        self.project.gemma("up", STACK, "--yes")
        require(f"'max_num_seqs': {SEQUENCES}," in self._log(), f"the new server has no max_num_seqs {SEQUENCES}")
        wait_until(lambda: not old & servers(self.vllm), "the end of the old server", _GONE_LIMIT_S)
        self.before = frozenset(servers(self.vllm))
        return [ended_note(old_log.read_text(encoding="utf-8", errors="replace"))]

    def _refused(self) -> list[str]:
        words = refused_up(self.project, STACK)
        log = self._log()
        require(REFUSED in log, "vLLM's log does not name the option")
        require("Container called exit(2)" in log, "vLLM did not exit with 2")
        require(bool(self.before & servers(self.vllm)), "the old revision does not run")
        chat(self.project, STACK)
        return [words]

    def _teardown(self) -> list[str]:
        # Exit code 0: every list was read, and no resource is left.
        self.project.gemma("teardown", STACK, "--yes")
        took_s = wait_until(lambda: not servers(self.vllm), "the end of the server", _GONE_LIMIT_S)
        return [f"vLLM gone after {took_s:.0f} s"]

    def _newest_log(self) -> Path:
        logs = sorted((self.project.state / "logs").glob(f"gemma-{STACK}-*.log"), key=lambda path: path.stat().st_mtime)
        if not logs:
            raise DifferenceError("no revision has a log")
        return logs[-1]

    def _log(self) -> str:
        """Return the log of the newest revision."""
        names = sorted((self.project.state / "logs").glob(f"gemma-{STACK}-*.log"))
        return names[-1].read_text(encoding="utf-8", errors="replace") if names else ""


def ended_note(log: str) -> str:
    """Return how a stopped server ended, by its log. Raises DifferenceError unless it shut down in order."""
    require("[shutdown] API server: shutdown triggered" in log, "the old server did not get SIGTERM")
    require("Application shutdown complete" in log, f"the old server was killed before its end, {END_LIMIT_S:.0f} s")
    return "the old server shut down in order"


def bench_note(point: Mapping[str, Any]) -> str:
    """Return the figures of one measured point. Raises DifferenceError if a request failed, or if vLLM counted other tokens."""
    wanted = point["point"]["requests"]
    require(
        point["completed"] == wanted and not point["failed"], f"{point['completed']} of {wanted} requests completed"
    )
    for ours, theirs in (("total_output_tokens", "generation_tokens"), ("total_input_tokens", "prompt_tokens")):
        counted = point["server"][theirs]
        require(point[ours] == counted, f"{ours} {point[ours]}, but vLLM counted {counted:g}")
    return f"{point['output_throughput']:.0f} tok/s; the verdict is invalid: faster than an L4 can be"
