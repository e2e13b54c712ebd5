"""Measure the processor time of the provider for a two-hour wait for capacity.

A wait of two hours sends fewer than 1,000 requests (tests/agreement/test_provider_waits.py). The benchmark sends 1,000, with a short pause after each, to a
server in another process.
`PYTHONPATH=packages/gcp-tpu python -m authors.benchmarks.provider_wait` prints the requests, the processor seconds, and their share of one core over two hours.
"""

import asyncio
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any, Final

TWO_HOURS_S: Final = 7200.0
REQUESTS: Final = 1000
_PAUSE_S: Final = 0.001
_ZONE: Final = "us-east5-a"


def _serve(port: Connection) -> None:
    """Answer every read of a queued resource with a waiting one."""
    from aiohttp import web  # noqa: PLC0415 - only the server's process

    async def answer(request: web.Request) -> web.Response:
        state = {"state": {"state": "WAITING_FOR_RESOURCES"}}
        return web.json_response(
            {"name": request.path.removeprefix("/v2alpha1/"), "createTime": "2026-01-01T00:00:00Z", **state}
        )

    async def run() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def _wait(transport: Any) -> None:  # noqa: ANN401 - the provider is another distribution, imported late
    """Read and record a waiting queued resource as often as the limit allows."""
    from gcp_tpu_provider.operation import PollTimer  # noqa: PLC0415 - as above
    from gcp_tpu_provider.resource_record import ResourceRecord  # noqa: PLC0415 - as above
    from gcp_tpu_provider.tpu_api import TpuApi  # noqa: PLC0415 - as above

    name = f"projects/p/locations/{_ZONE}/queuedResources/serve"
    api, record, timer = TpuApi(transport), ResourceRecord(zone=_ZONE, name=name), PollTimer(transport.pacing)
    for _ in range(REQUESTS):
        found = await api.find_queued_resource(name)
        if found is not None:
            record.observe(found)
        await timer.pause()
    await transport.close()


def main() -> None:
    """Measure and print."""
    from gcp_tpu_provider.http_transport import HttpTpuTransport  # noqa: PLC0415 - as above
    from gcp_tpu_provider.transport import Pacing  # noqa: PLC0415 - as above

    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    os.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] = f"http://127.0.0.1:{ours.recv()}/"
    os.environ["GOOGLE_OAUTH_ACCESS_TOKEN"] = "none"  # noqa: S105 - the server here takes any
    pacing = Pacing(poll_first_s=_PAUSE_S, poll_most_s=_PAUSE_S)
    before_s = time.process_time()
    asyncio.run(_wait(HttpTpuTransport(pacing)))
    used_s = time.process_time() - before_s
    server.terminate()
    print(f"{REQUESTS} requests, {used_s:.2f} processor seconds: {used_s / TWO_HOURS_S:.4%} of one core over two hours")


if __name__ == "__main__":
    main()
