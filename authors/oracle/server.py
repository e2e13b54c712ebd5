"""Start the real vLLM on one core, and always stop it."""

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

from authors.oracle.environment import MODEL, OracleError, OracleHome, OracleRefusedError, OracleSay

HOST: Final = "127.0.0.1"
MAX_MODEL_LEN: Final = 4096
READY_LIMIT_S: Final = 900.0
_PROBE_LIMIT_S: Final = 10.0
_POLL_S: Final = 0.5
_SAY_EVERY_S: Final = 20.0
_END_LIMIT_S: Final = 30.0
DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Client without a proxy, because both programs are on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleCores:
    """Assignment of cores. The server's threads spin, so a client on the same core measures itself."""

    server: frozenset[int]
    clients: frozenset[int]


def split_cores(allowed: Sequence[int]) -> OracleCores:
    """Assign the last core to the server and the rest to the clients. A single core is shared."""
    ordered = sorted(allowed)
    return OracleCores(server=frozenset(ordered[-1:]), clients=frozenset(ordered[:-1] or ordered))


@contextmanager
def on_cores(cores: frozenset[int]) -> Generator[None]:
    """Restrict processes started in the context to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port(wanted: int) -> int:
    """Return the port if it is free, or any free port for 0. Raises OracleRefusedError if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            raise OracleRefusedError(
                f"Cannot use port {wanted}: {error.strerror}. Remove --port to use a free one."
            ) from None
        return int(probe.getsockname()[1])


def tools_environment(home: OracleHome, variables: Mapping[str, str]) -> dict[str, str]:
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
def running_server(
    home: OracleHome,
    port: int,
    cores: OracleCores,
    say: OracleSay,
    *,
    name: str = "server",
    model: str = MODEL,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Generator[str]:
    """Start the server, wait until it is ready, yield its address, and stop it. `name` is the name of its log."""
    log = home.results / f"{name}.log"
    command = ["vllm", "serve", model, "--host", HOST, "--port", str(port)]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--enforce-eager", *arguments]
    environment = {**tools_environment(home, os.environ), **(variables or {})}
    with log.open("wb") as stream, on_cores(cores.server):
        process = subprocess.Popen(
            [str(home.programs / command[0]), *command[1:]],
            cwd=home.models,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    url = f"http://{HOST}:{port}"
    try:
        wait_until_ready(process, url, log, say)
        yield url
    finally:
        end_group(process)


def wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path, say: OracleSay) -> None:
    """Wait until a server answers at `/health`. Raises OracleError if it exits, or after READY_LIMIT_S."""
    began_s = said_s = time.monotonic()
    while True:
        if process.poll() is not None:
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
            raise OracleError(f"vLLM exited with {process.returncode} before it was ready. Log: {log}\n{tail}")
        with suppress(OSError, urllib.error.URLError), DIRECT.open(f"{url}/health", timeout=_PROBE_LIMIT_S):
            say(f"vLLM is ready after {time.monotonic() - began_s:.0f} s")
            return
        now_s = time.monotonic()
        if now_s - began_s > READY_LIMIT_S:
            raise OracleError(f"vLLM was not ready after {READY_LIMIT_S:.0f} s. Log: {log}")
        if now_s - said_s > _SAY_EVERY_S:
            said_s = now_s
            say(f"waiting for vLLM ({now_s - began_s:.0f} s)")
        time.sleep(_POLL_S)


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Stop a process that leads a session, and all its descendants, even if interrupted."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        break
    # Children that outlive their leader are stopped too.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def read_metrics(url: str) -> dict[str, float]:
    """Return the server's metrics, each summed over its labels."""
    return parse_metrics(metrics_text(url))


def metrics_text(url: str) -> str:
    """Return the server's metrics in Prometheus text."""
    with DIRECT.open(f"{url}/metrics", timeout=_PROBE_LIMIT_S) as answer:
        return answer.read().decode()


def parse_metrics(text: str) -> dict[str, float]:
    """Return name and value of all samples in Prometheus text, each name summed over its labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0].strip()
            found[name] = found.get(name, 0.0) + float(value)
    return found
