"""The collector of metrics as a container of a simulated machine: a process that waits and scrapes nothing.

A container is a collector if the last part of its image's name is `otelcol-google` (Google-Built OpenTelemetry Collector). It names its
configuration with `--config`: `env:NAME`, `yaml:TEXT`, or the path of a mounted file (providers of its build:
GoogleCloudPlatform/opentelemetry-operations-collector 03b4bd9, google-built-opentelemetry-collector/manifest.yaml).
"""

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

ENTRY_POINT: Final = "/otelcol-google"
_IMAGE_NAME: Final = "otelcol-google"


def is_collector(image: str) -> bool:
    """Return whether an image is the collector."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0] == _IMAGE_NAME


def problem_of(words: Sequence[str], variables: Mapping[str, str], paths: Mapping[str, str]) -> str:
    """Return why a collector does not start, or an empty text. `paths`: container path -> real path."""
    source = _source(words)
    scheme, colon, rest = source.partition(":")
    if not source:
        return "The collector has no --config."
    if scheme == "env" and colon:
        return "" if rest in variables else f"The collector's --config names the variable {rest}, which is not set."
    if scheme == "yaml" and colon:
        return ""
    inside = source.removeprefix("file:")
    mounted = max((path for path in paths if inside == path or inside.startswith(path.rstrip("/") + "/")), key=len)
    try:
        Path(paths[mounted] + inside[len(mounted.rstrip("/")) :]).read_bytes()
    except OSError as error:
        return f"The collector cannot read {source}: {error.strerror}."
    return ""


def _source(words: Sequence[str]) -> str:
    for at, word in enumerate(words):
        if word.startswith("--config="):
            return word.removeprefix("--config=")
        if word == "--config" and at + 1 < len(words):
            return words[at + 1]
    return ""


def main(argv: list[str]) -> int:
    """Wait for a signal, or print the problem and exit."""
    if argv:
        print(f"Error: {argv[0]}", file=sys.stderr)
        return 1
    # The default of SIGTERM is exit code 143; the collector exits with 0.
    signal.signal(signal.SIGTERM, _on_stop)
    print("Everything is ready. Begin running and processing data.", flush=True)
    while True:
        signal.pause()


def _on_stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
