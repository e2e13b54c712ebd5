"""Start the real vLLM on one core and its clients on the others, and always stop them."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dev.judges.real_vllm.environment import MODEL, RealVllmError, RealVllmHome, last_line_of, print_progress

HOST: Final = "127.0.0.1"
MAX_MODEL_LEN: Final = 4096
READY_LIMIT_S: Final = 900.0
_TOOL_LIMIT_S: Final = 900.0
_PROBE_LIMIT_S: Final = 10.0
_POLL_S: Final = 0.5
_END_LIMIT_S: Final = 30.0
DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Client without a proxy, because both programs are on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealVllmCores:
    """Assignment of cores. The server's threads spin, so a client on the same core measures itself."""

    server: frozenset[int]
    clients: frozenset[int]


def split_cores(allowed: Sequence[int]) -> RealVllmCores:
    """Assign the last core to the server and the rest to the clients. A single core is shared."""
    ordered = sorted(allowed)
    return RealVllmCores(server=frozenset(ordered[-1:]), clients=frozenset(ordered[:-1] or ordered))


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def tools_environment(home: RealVllmHome, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of vLLM and its benchmark: offline, without usage reports."""
    return {
        **variables,
        "PATH": f"{home.programs}{os.pathsep}{variables.get('PATH', os.defpath)}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": HOST,
        "no_proxy": HOST,
    }


@contextmanager
def running_program(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, cores: frozenset[int]
) -> Generator["subprocess.Popen[bytes]"]:
    """Start a program that leads a session on these cores, and stop it with all its descendants, even if interrupted.

    stderr is kept in the log, stdout next to it as `.stdout`.
    """
    before = os.sched_getaffinity(0)
    with log.with_suffix(".stdout").open("wb") as output, log.open("wb") as errors:
        os.sched_setaffinity(0, cores)
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        finally:
            os.sched_setaffinity(0, before)
    try:
        yield process
    finally:
        try:
            _signal_group(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_END_LIMIT_S)
        finally:
            # Children that outlive their leader are stopped too.
            _signal_group(process, signal.SIGKILL)
            process.wait()


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def run_tool(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    cores: RealVllmCores,
    *,
    allowed: tuple[int, ...] = (0,),
    limit_s: float = _TOOL_LIMIT_S,
) -> str:
    """Run a program on the clients' cores and return its stdout. Both streams are kept. Raises RealVllmError."""
    name = " ".join([Path(command[0]).name, *command[1:3]])
    with running_program(command, folder, environment, log, cores.clients) as process:
        try:
            code = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise RealVllmError(f"{name} did not finish within {limit_s:.0f} s. See {log}.") from None
    if code not in allowed:
        raise RealVllmError(
            f"{name} failed with {code}: {last_line_of(log)}. See {log} and {log.with_suffix('.stdout')}."
        )
    return log.with_suffix(".stdout").read_text(encoding="utf-8", errors="replace")


@contextmanager
def running_server(
    home: RealVllmHome,
    cores: RealVllmCores,
    name: str,
    *,
    model: str = MODEL,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Generator[str]:
    """Start a vLLM on a free port, wait until it is ready, yield its address, and stop it. `name` is the name of its log."""
    port = free_port()
    log = home.results / f"{name}.log"
    command = [str(home.programs / "vllm"), "serve", model, "--host", HOST, "--port", str(port)]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--enforce-eager", *arguments]
    environment = {**tools_environment(home, os.environ), **(variables or {})}
    print_progress(f"starting vLLM on core {min(cores.server)}, port {port}, log: {log}")
    with running_program(command, home.models, environment, log, cores.server) as process:
        url = f"http://{HOST}:{port}"
        wait_until_ready(process, url, log)
        yield url


def wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Wait until a server answers at `/health`. Raises RealVllmError if it exits, or after READY_LIMIT_S."""
    began_s = time.monotonic()
    while process.poll() is None:
        with suppress(OSError, urllib.error.URLError), DIRECT.open(f"{url}/health", timeout=_PROBE_LIMIT_S):
            print_progress(f"vLLM is ready after {time.monotonic() - began_s:.0f} s")
            return
        if time.monotonic() - began_s > READY_LIMIT_S:
            raise RealVllmError(f"vLLM was not ready after {READY_LIMIT_S:.0f} s. Log: {log}")
        time.sleep(_POLL_S)
    raise RealVllmError(f"vLLM exited with {process.returncode} before it was ready: {last_line_of(log)}. Log: {log}")


def read_metrics(url: str) -> dict[str, float]:
    """Return the server's metrics, each summed over its labels."""
    with DIRECT.open(f"{url}/metrics", timeout=_PROBE_LIMIT_S) as answer:
        return parse_metrics(answer.read().decode())


def parse_metrics(text: str) -> dict[str, float]:
    """Return name and value of all samples in Prometheus text, each name summed over its labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0].strip()
            found[name] = found.get(name, 0.0) + float(value)
    return found
