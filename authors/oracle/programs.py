"""Run a program on the clients' cores, keep its output, and stop it."""

import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from authors.oracle.environment import OracleError
from authors.oracle.server import OracleCores, end_group, on_cores

_LIMIT_S: Final = 900.0


def run_tool(
    command: list[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    cores: OracleCores,
    *,
    allowed: tuple[int, ...],
    limit_s: float = _LIMIT_S,
) -> str:
    """Run a program on the clients' cores and return its stdout. Both streams are kept in the log. Raises OracleError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    output = log.with_suffix(".stdout")
    with output.open("wb") as stream, log.open("wb") as errors:
        with on_cores(cores.clients):
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=errors,
                start_new_session=True,
            )
        try:
            code = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise OracleError(f"{_name(command)} did not finish within {limit_s:.0f} s. See {log}.") from None
        finally:
            if process.poll() is None:
                end_group(process)
    if code not in allowed:
        raise failed_tool(command, code, log)
    return output.read_text(encoding="utf-8", errors="replace")


def failed_tool(command: list[str], code: int, log: Path) -> OracleError:
    """Return the error for a program that failed with this code. A negative code is a signal."""
    last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"])[-1]
    name = signal.Signals(-code).name if code < 0 else str(code)
    return OracleError(
        f"{_name(command)} failed with {name}: {last[:300]}. See {log} and {log.with_suffix('.stdout')}."
    )


def _name(command: list[str]) -> str:
    words = [Path(command[0]).name, *command[1:]]
    return " ".join(words[:3])
