"""A collector's container on a simulated machine: a process that waits. The local cloud itself reads the metrics (localcloud.services.collecting)."""

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from localcloud.world.collector import CollectorConfigError, config_text

CONFIG_KEY: Final = "collectorConfig"
"""Key of the configuration in the record of a container."""


def configuration(
    words: Sequence[str], variables: Mapping[str, str], paths: Mapping[str, str]
) -> tuple[str | None, str]:
    """Return the configuration of a collector, or None and why it does not start. `paths`: container path -> real path."""

    def read(inside: str) -> str:
        mounted = max((path for path in paths if inside == path or inside.startswith(path.rstrip("/") + "/")), key=len)
        return Path(paths[mounted] + inside[len(mounted.rstrip("/")) :]).read_text(encoding="utf-8")

    try:
        return config_text(words, variables, read), ""
    except CollectorConfigError as error:
        return None, str(error)


def main(argv: list[str]) -> int:
    """Wait for a signal, or print the problem and exit."""
    if argv:
        print(f"Error: {argv[0]}", file=sys.stderr)
        return 1
    print("Everything is ready. Begin running and processing data.", flush=True)
    # The default of SIGTERM would show as exit code 143; the collector exits with 0.
    signal.signal(signal.SIGTERM, _on_stop)
    signal.pause()
    return 0


def _on_stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
