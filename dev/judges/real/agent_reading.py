"""Phases and error that the agent of a TPU VM reads in a server's log. Its code runs in a child process, because it is never imported."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dev.judges.real.home import run

_CHILD: Final = """
import json, sys
from gemma_serving.contracts.server_errors import server_error
from gemma_serving.vm_agent.publishing import LogFollower
lines, follower, phases = sys.stdin.read().splitlines(), LogFollower(), []
for line in lines:
    follower.add_line(line)
    if phases[-1:] != [follower.phase]:
        phases.append(follower.phase)
print(json.dumps({"phases": phases, "error": server_error(lines)[0]}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReading:
    """The phases that the agent publishes for a log, in order, and the error that it shows, empty without one."""

    phases: Sequence[str]
    error: str


def reading_of(log: str) -> AgentReading:
    """Return what the agent reads in a log."""
    done = run([sys.executable, "-c", _CHILD], given=log)
    if done.returncode:
        raise RuntimeError(f"the agent's code failed: {done.stderr.strip()[-300:]}")
    return AgentReading(**json.loads(done.stdout))
