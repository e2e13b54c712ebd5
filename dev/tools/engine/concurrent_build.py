"""`python -m dev.tools.engine.concurrent_build COMMAND ...`: run the command that installs the packages, and build the engine at the same time.

The engine is built only if no other source has it. Needs no package itself.
`python -m dev.tools.engine` follows; it finds the engine, or tries each source and reports their errors.
"""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

from dev.tools.engine import release
from dev.tools.engine.model import EngineError, Source
from dev.tools.engine.setup import cached, ensure, on_path


def main(command: Sequence[str]) -> int:
    """Return the command's exit code."""
    build = Thread(target=_build, daemon=True)
    build.start()
    try:
        code = subprocess.call(command)
        while code == 0 and build.is_alive():
            build.join(1)  # a join without an end ignores Ctrl-C
    except KeyboardInterrupt:
        return 130
    return code


def _build() -> None:
    if on_path() or cached(Source.RELEASE) or cached(Source.BUILD) or release.responds():
        return
    with suppress(EngineError):
        ensure([Source.BUILD])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
