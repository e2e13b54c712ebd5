"""The collector of metrics as a container: how it is recognized, and where its configuration is.

A container is a collector if the last part of its image's name is `otelcol-google` (Google-Built OpenTelemetry Collector). It names its
configuration with `--config`: `env:NAME`, `yaml:TEXT`, or the path of a mounted file. `${env:NAME}` in it is a variable of the container
(providers of its build: GoogleCloudPlatform/opentelemetry-operations-collector 03b4bd9, google-built-opentelemetry-collector/manifest.yaml).
Standard library only: `docker` on a machine imports this module.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

ENTRY_POINT: Final = "/otelcol-google"
_IMAGE_NAME: Final = "otelcol-google"
_VARIABLE: Final = re.compile(r"\$\{env:([A-Za-z_]\w*)\}")


class CollectorConfigError(Exception):
    """The collector does not start, or the local cloud does not know what it would store. The message is one sentence."""


def is_collector(image: str) -> bool:
    """Return whether an image is the collector."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0] == _IMAGE_NAME


def config_text(words: Sequence[str], variables: Mapping[str, str], read: Callable[[str], str]) -> str:
    """Return the configuration that a command line names, with its variables. `read` returns the text of a file. Raises CollectorConfigError."""
    scheme, colon, rest = (source := _source(words)).partition(":")
    if scheme == "env" and colon:
        if rest not in variables:
            raise CollectorConfigError(f"The collector's --config names the variable {rest}, which is not set.")
        text = variables[rest]
    elif scheme == "yaml" and colon:
        text = rest
    else:
        try:
            text = read(source.removeprefix("file:"))
        except OSError as error:
            raise CollectorConfigError(f"The collector cannot read {source}: {error.strerror}.") from None
    return _VARIABLE.sub(lambda found: variables.get(found[1], ""), text)


def _source(words: Sequence[str]) -> str:
    for at, word in enumerate(words):
        if word.startswith("--config="):
            return word.removeprefix("--config=")
        if word == "--config" and at + 1 < len(words):
            return words[at + 1]
    raise CollectorConfigError("The collector has no --config.")
