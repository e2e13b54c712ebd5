"""Starter of a Cloud Run container: fetches weights and graphs, writes the path guard, becomes the server.

Arguments: the text of a `ContainerStart`, then the server's command line.
"""

import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from gemma_serving.contracts.container_start import GraphCache, parse_start
from gemma_serving.contracts.path_guard import PYTHON_PATH, is_guarded, python_path
from gemma_serving.contracts.serving_document import BucketWeights
from gemma_serving.vm_agent.archives import TREE, Archive, harmless
from gemma_serving.vm_agent.base import ServingError, environment_variable, log
from gemma_serving.vm_agent.clock import AgentClock
from gemma_serving.vm_agent.cloud import CONNECTION_ERRORS, DIRECT, MetadataClient, endpoint, read_secret
from gemma_serving.vm_agent.guard_file import write_guard
from gemma_serving.vm_agent.weights import WeightsCopy

READY_LIMIT_S = 3600.0
"""Maximum wait of the child for a ready server: longer than every startup probe."""
READY_INTERVAL_S = 1.0
TOLD_EVERY_S = 10.0
LOWEST_NICE = 19
CONNECTS_LIMIT_S = 150.0
"""Assumed: more than twice the minute that Google names."""
CONNECT_TIMEOUT_S = 5.0
HTTPS_PORT = 443
GRAPHS = "Compiled graphs"


def wait_for_connections(clock: AgentClock) -> None:
    """Return when a connection to Cloud Storage works, or after CONNECTS_LIMIT_S.

    The first ones of an instance with Direct VPC fail for up to a minute or more (docs.cloud.google.com/run/docs/configuring/vpc-direct-vpc).
    """
    storage = urlsplit(endpoint("storage"))
    address = (storage.hostname or "", storage.port or HTTPS_PORT)
    deadline = clock.now() + CONNECTS_LIMIT_S
    while clock.now() < deadline:
        with suppress(OSError), socket.create_connection(address, timeout=CONNECT_TIMEOUT_S):
            return
        clock.sleep(READY_INTERVAL_S)
    log(f"No connection to {address[0]} worked within {CONNECTS_LIMIT_S:.0f} s.")


def copy_weights(metadata: MetadataClient, weights: BucketWeights) -> None:
    """Copy the weights in parallel and log the progress. Raises ServingError."""
    clock = metadata.clock
    begun_s = told_s = clock.now()

    def progress(text: str) -> None:
        nonlocal told_s
        if clock.now() - told_s >= TOLD_EVERY_S:
            told_s = clock.now()
            log(f"Copying {weights.uri} into memory: {text}.")

    WeightsCopy(metadata, weights, progress, lambda: False).run()
    log(f"{weights.uri} was copied to {weights.path} in {clock.now() - begun_s:.1f} s.")


def restore_graphs(metadata: MetadataClient, cache: GraphCache) -> bool:
    """Restore the newest archive of vLLM's VLLM_CACHE_ROOT. Return whether one was restored."""
    with harmless(log, GRAPHS, graphs_grant(cache)):
        archive = graphs_archive(metadata, cache)
        return archive.restore_newest(GRAPHS, log, *archive.listed())
    return False


def save_graphs(metadata: MetadataClient, cache: GraphCache) -> None:
    """Archive the graphs, unless another instance has done it."""
    with harmless(log, GRAPHS, graphs_grant(cache)):
        files = [
            path
            for path in sorted(Path(cache.path).rglob("*"))
            if path.is_file() and not path.is_symlink() and TREE.fullmatch(path.relative_to(cache.path).as_posix())
        ]
        archive = graphs_archive(metadata, cache)
        if files and not archive.listed()[0]:
            log(f"{GRAPHS} were {archive.save(files)}.")


def graphs_archive(metadata: MetadataClient, cache: GraphCache) -> Archive:
    """Return the archive, with its key. Raises ServingError."""
    return Archive(metadata, cache.uri, Path(cache.path), read_secret(metadata, cache.key), TREE)


def graphs_grant(cache: GraphCache) -> str:
    """Return the words after "Grant" if the bucket denies access."""
    account = f"the service's account roles/storage.objectUser on the folder {cache.uri}"
    return f"{account} (gemma-serving:cloudRun.compileCache: bucket grants it)."


def save_when_ready(metadata: MetadataClient, graphs: GraphCache, server: int, port: str) -> None:
    """Archive the compiled graphs when the server responds to /health. Return if it exits before."""
    url = f"http://{environment_variable('GEMMA_SERVING_LOOPBACK', '127.0.0.1')}:{port}/health"
    deadline = metadata.clock.now() + READY_LIMIT_S
    while os.getppid() == server and metadata.clock.now() < deadline:
        with suppress(*CONNECTION_ERRORS), DIRECT.open(url, timeout=10):
            break
        metadata.clock.sleep(READY_INTERVAL_S)
    else:
        return
    with suppress(OSError):
        os.nice(LOWEST_NICE)  # in favor of the server
    save_graphs(metadata, graphs)


def start_server(arguments: Sequence[str]) -> NoReturn:
    """Prepare the container and become the server."""
    start, command = parse_start(arguments[0]), list(arguments[1:])
    metadata = MetadataClient()
    if start.graphs is not None or start.weights is not None or start.parts:
        wait_for_connections(metadata.clock)
    try:
        if is_guarded(command):
            folder = write_guard(Path(tempfile.mkdtemp(prefix="gemma-serving-")))
            os.environ[PYTHON_PATH] = python_path(str(folder), os.environ.get(PYTHON_PATH, ""))
        saves = start.graphs is not None and not restore_graphs(metadata, start.graphs)
        for copied in (*([start.weights] if start.weights is not None else []), *start.parts):
            copy_weights(metadata, copied)
    except (ServingError, *CONNECTION_ERRORS) as error:
        log(f"Cannot start the server: {error}")
        sys.exit(1)
    server = os.getpid()
    if saves and start.graphs is not None and os.fork() == 0:
        try:
            save_when_ready(metadata, start.graphs, server, environment_variable("PORT", "8000"))
        finally:
            os._exit(0)
    os.execvp(command[0], command)  # noqa: S606 - the server's command line, as the stack wrote it


if __name__ == "__main__":
    start_server(sys.argv[1:])
