"""Time until the agent's server answers `initialize`, in CPU time, as a multiple of an empty interpreter (`python -c pass`).

    python -m authors.benchmarks.agent_start [--runs N] [--json]

Measures CPU time instead of elapsed time, because other work on the machine affects it little. Each value is the best of its runs, and
the two programs alternate. The server's value includes its short exit after the response.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
EMPTY: Final = (sys.executable, "-c", "pass")
DEFAULT_RUNS: Final = 5
LARGEST_CPU_S: Final = 1.5
"""Target of the project."""
_INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStart:
    """Result of the measurement."""

    empty_cpu_s: float
    server_cpu_s: float
    ratio: float
    """Return the multiple of the empty interpreter."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m authors.benchmarks.agent_start", description="Measure the start-up time of the agent."
    )
    parser.add_argument("--runs", type=int, default=DEFAULT_RUNS, help="runs of each; the best one counts")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args(argv)
    if args.runs < 1:
        parser.error("--runs must be 1 or more")
    found = measure(args.runs)
    if args.json:
        print(json.dumps({"runs": args.runs, **asdict(found)}, indent=2))
        return 0
    print(f"python -c pass  {found.empty_cpu_s:.3f} CPU s")
    print(f"initialize      {found.server_cpu_s:.3f} CPU s, {found.ratio:.1f} x; target: {LARGEST_CPU_S} CPU s")
    return 0


def measure(runs: int) -> AgentStart:
    """Start both `runs` times. The first start of the server, which may compile files, does not count."""
    with tempfile.TemporaryDirectory() as folder:
        server = (sys.executable, "-m", "scripts.agent", "--audit", str(Path(folder, "audit")))
        asked = (json.dumps(_INITIALIZE) + "\n").encode()
        _cpu_s(server, asked)
        pairs = [(_cpu_s(EMPTY, b""), _cpu_s(server, asked)) for _ in range(runs)]
    empty_s, server_s = (min(column) for column in zip(*pairs, strict=True))
    return AgentStart(empty_cpu_s=empty_s, server_cpu_s=server_s, ratio=server_s / empty_s)


def _cpu_s(command: Sequence[str], asked: bytes) -> float:
    """Return the CPU seconds of a process that gets one request and exits when its input ends."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process was started without a pipe")
    if asked:
        process.stdin.write(asked)
        process.stdin.flush()
        if b'"result"' not in process.stdout.readline():
            raise RuntimeError(
                "The server did not answer initialize. Run `python -m scripts.agent </dev/null` to see the reason."
            )
    process.stdin.close()
    process.stdout.read()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # it has been waited for
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
