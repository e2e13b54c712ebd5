"""Run vLLM's command line in copies of a process that has already loaded vLLM."""

import json
import os
import selectors
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from authors.oracle.environment import HERE, OracleError, OracleHome, OracleSay
from authors.oracle.programs import failed_tool
from authors.oracle.server import OracleCores, end_group, on_cores, tools_environment

_LOAD_LIMIT_S: Final = 600.0


class VllmCopies:
    """A running `preloaded.py`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    def run(self, words: list[str], log: Path, limit_s: float) -> str:
        """Run a vLLM command line and return its stdout. Both streams are kept. Raises OracleError."""
        output = log.with_suffix(".stdout")
        order = {"words": words, "stdout": str(output), "stderr": str(log)}
        orders = self._pipe(self._process.stdin)
        try:
            orders.write(json.dumps(order).encode() + b"\n")
            orders.flush()
        except OSError as error:
            raise OracleError(f"The process with vLLM loaded is gone: {error.strerror}. See {self._log}.") from None
        code = self.next_code(limit_s)
        if code != 0:
            raise failed_tool(words, code, log)
        return output.read_text(encoding="utf-8", errors="replace")

    def next_code(self, limit_s: float) -> int:
        """Wait for the current command to finish and return its exit code. Raises OracleError after the limit."""
        answers = self._pipe(self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(answers, selectors.EVENT_READ)
            # The process writes each line in one piece, so a line is complete when anything can be read.
            line = answers.readline() if selector.select(limit_s) else None
        if line is None:
            raise OracleError(f"vLLM's benchmark did not finish within {limit_s:.0f} s. See {self._log.parent}.")
        if not line:
            raise OracleError(f"The process with vLLM loaded is gone. See {self._log}.")
        return int(json.loads(line)["code"])

    def _pipe(self, pipe: IO[bytes] | None) -> IO[bytes]:
        if pipe is None:
            raise OracleError("The process with vLLM loaded was started without pipes.")
        return pipe


@contextmanager
def preloaded_vllm(home: OracleHome, cores: OracleCores, say: OracleSay) -> Generator[VllmCopies]:
    """Load vLLM once, yield the runner of its command lines, and stop it."""
    log = home.results / "preloaded.log"
    say("loading vLLM's benchmark once for all runs")
    with log.open("wb") as stream, on_cores(cores.clients):
        process = subprocess.Popen(
            [str(home.programs / "python"), str(HERE / "preloaded.py")],
            cwd=home.models,
            env=tools_environment(home, os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            start_new_session=True,
        )
    try:
        copies = VllmCopies(process, log)
        copies.next_code(_LOAD_LIMIT_S)
        yield copies
    finally:
        end_group(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
