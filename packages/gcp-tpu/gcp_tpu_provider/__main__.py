"""Start the provider: serve on a free loopback port, print the port, and exit silently when the engine exits."""

import asyncio
import os
import signal
import sys
import types
from contextlib import suppress
from importlib import util
from pathlib import Path

from gcp_tpu_provider import VERSION

# Load only `pulumi.runtime.proto`, because the surrounding packages take a quarter of the provider's start-up time.
for name in ("pulumi", "pulumi.runtime"):
    if name in sys.modules or (found := util.find_spec(name)) is None:
        break
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = list(found.submodule_search_locations or [])


def _remedy(folder: Path) -> str:
    """Return how to complete an installation: the folder of a checkout, the unpacked archive of a release, or a Python environment."""
    if (folder / "pulumi-resource-gcp-tpu").is_file():
        return (
            "Install the provider's requirements (`make setup`, or `pip install --require-hashes -r packages/gcp-tpu/requirements.txt`) "
            "into .venv or the active virtual environment."
        )
    if (folder / "PulumiPlugin.yaml").is_file():
        return (
            f"The installation of the plugin is incomplete. Repeat it: `pulumi plugin install resource gcp-tpu {VERSION} --reinstall`, "
            "with `--file ARCHIVE` to install an archive."
        )
    return f"The installation is incomplete. Repeat it: `pip install --force-reinstall ./gcp_tpu_provider-{VERSION}-py3-none-any.whl`."


try:
    import grpc
    from pulumi.runtime.proto import provider_pb2_grpc

    from gcp_tpu_provider.http_transport import HttpTpuTransport
    from gcp_tpu_provider.servicer import TpuProvider

    for late in ("aiohttp", "google.auth", "requests", "tenacity"):  # loaded by the first call to Google
        if util.find_spec(late) is None:
            raise ModuleNotFoundError(name=late)
except ImportError as error:
    print(
        f"pulumi-resource-gcp-tpu: {sys.executable} cannot import {error.name}. {_remedy(Path(__file__).parents[1])}",
        file=sys.stderr,
    )
    sys.exit(1)

MAX_MESSAGE_BYTES = 400 * 1024 * 1024
"""The engine's limit (pulumi/sdk, rpcutil: 400 MiB)."""
GRACE_S = 10.0
"""Time that interrupted operations have to report their resources."""
PARENT_POLL_S = 1.0


async def serve() -> None:
    """Serve until SIGINT, SIGTERM or the exit of the parent process."""
    parent = os.getppid()
    limits = (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    )
    server = grpc.aio.server(options=limits)
    provider = TpuProvider(HttpTpuTransport())
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    print(port, flush=True)
    while not ended.is_set() and os.getppid() == parent:
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), PARENT_POLL_S)
    provider.cancel_all()
    await server.stop(GRACE_S)
    await provider.close()


def main() -> None:
    """Start the provider. Entry point of `pulumi-resource-gcp-tpu`."""
    asyncio.run(serve())


if __name__ == "__main__":
    main()
