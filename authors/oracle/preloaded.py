# pyright: basic, reportMissingImports=false
# ruff: noqa: PLC0415 - vLLM is the oracle's, and takes ten seconds to load
"""Run vLLM command lines repeatedly in copies of one process, because loading vLLM takes 13 s of processor time.

Run by the oracle's Python. Each line of stdin is a JSON object: `words` of a command line that starts with `vllm`, and the paths
`stdout` and `stderr`. A copy of this process runs vLLM's entry point with these words, and a line of stdout then has its exit `code`.
"""

import contextlib
import io
import json
import os
import sys
import traceback


def run(words: list[str]) -> int:
    """Run the entry point of the program `vllm` and return the exit code."""
    from vllm.entrypoints.cli.main import main

    sys.argv = words
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the copy must exit here, whatever vLLM raises
        traceback.print_exc()
        return 1
    return 0


def run_copy(words: list[str], stdout: str, stderr: str) -> int:
    """Run the entry point in a copy of this process and return the exit code. A negative code is a signal."""
    pid = os.fork()
    if pid == 0:
        with open(stdout, "wb") as out, open(stderr, "wb") as errors, open(os.devnull, "rb") as nothing:  # noqa: PTH123 - descriptors
            for source, target in ((nothing, 0), (out, 1), (errors, 2)):
                os.dup2(source.fileno(), target)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        code = run(words)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Load the benchmark's modules, report it, and run one command per line."""
    with contextlib.redirect_stdout(io.StringIO()):
        run(["vllm", "bench", "serve", "--help"])
    print(json.dumps({"code": 0}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps({"code": run_copy(order["words"], order["stdout"], order["stderr"])}), flush=True)


if __name__ == "__main__":
    main()
