"""Process of the load generator: `python -m loadtest.generator.worker`, driven through its standard input and output.

Messages in: a `Share`, `StartLoad` with the start time, `StopLoad`, and the end of the input, which stops the process. Messages out:
`Ready`, `Progress` twice per second, and one `WorkerResult` per point. The parent handles interrupts and decides what to keep.
"""

import asyncio
import contextlib
import signal
import sys
import threading
from typing import Final

from loadtest.generator.load import LoadGenerator, Share
from loadtest.generator.pool import raise_open_files_limit
from loadtest.records import Progress, Ready, StartLoad, StopLoad, WorkerResult, packed, read_message

PROGRESS_PERIOD_S: Final = 0.5


def _send(message: object) -> None:
    sys.stdout.buffer.write(packed(message))
    sys.stdout.buffer.flush()


async def _serve(inbox: asyncio.Queue[object]) -> None:
    loop = asyncio.get_running_loop()
    while (share := await inbox.get()) is not None:
        if not isinstance(share, Share):
            continue  # a `StopLoad` that was sent before the last result arrived
        generator = LoadGenerator(share, loop)
        await generator.prepare()
        _send(Ready())
        order = await inbox.get()
        if order is None:
            return
        if isinstance(order, StopLoad):
            generator.stop()
        run = loop.create_task(generator.run(order.start_s if isinstance(order, StartLoad) else 0.0))
        if not await _attend(run, generator, inbox):
            return
        _send(run.result())


async def _attend(run: asyncio.Task[WorkerResult], generator: LoadGenerator, inbox: asyncio.Queue[object]) -> bool:
    """Wait for the end of a run, report progress, and obey `stop`. Return False if the parent process has exited."""
    order = asyncio.create_task(inbox.get())
    try:
        while not run.done():
            await asyncio.wait({run, order}, timeout=PROGRESS_PERIOD_S, return_when=asyncio.FIRST_COMPLETED)
            if order.done():
                generator.stop()
                if order.result() is None:
                    run.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await run
                    return False
                order = asyncio.create_task(inbox.get())
            elif not run.done():
                _send(Progress(generator.finished, generator.in_flight))
    finally:
        order.cancel()
    return True


async def _main() -> None:
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[object] = asyncio.Queue()

    def read() -> None:
        while True:
            message = read_message(sys.stdin.buffer)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(inbox.put_nowait, message)
            if message is None:
                return

    threading.Thread(target=read, daemon=True, name="inbox").start()
    await _serve(inbox)


def main() -> None:
    """Run the worker."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent stops its workers by closing their input
    raise_open_files_limit()
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(_main())


if __name__ == "__main__":
    main()
