"""One process of the load generator: `python -m scripts.bench.worker`, driven through its standard input and output.

Messages in: `prepare` with a share, `go` with the start time, `stop`, and the end of the input, which ends the process. Messages out:
`ready`, `progress` twice a second, and one `result` a point. Interrupts are the parent's business: it decides what is kept.
"""

import asyncio
import contextlib
import signal
import sys
import threading
from typing import Any, Final

from scripts.bench.limits import raise_open_files_limit
from scripts.bench.load import LoadGenerator, Share
from scripts.bench.prompts import Recipe
from scripts.bench.records import pack_result, read_frame, write_frame

PROGRESS_PERIOD_S: Final = 0.5


def share_from_json(head: dict[str, Any]) -> Share:
    """Return the share in a `prepare` message."""
    fields = dict(head["share"])
    recipe = dict(fields["recipe"])
    fields["recipe"] = Recipe(words=tuple(recipe["words"]), count=recipe["count"], seed=recipe["seed"])
    return Share(**fields)


async def _serve(inbox: asyncio.Queue[dict[str, Any] | None]) -> None:
    loop = asyncio.get_running_loop()
    out = sys.stdout.buffer
    while (message := await inbox.get()) is not None:
        if message["op"] != "prepare":
            continue  # a `stop` that was sent before the last result arrived
        generator = LoadGenerator(share_from_json(message), loop)
        await generator.prepare()
        write_frame(out, {"op": "ready"})
        order = await inbox.get()
        if order is None:
            return
        if order["op"] == "stop":
            generator.stop()
        start_s = float(order.get("start_s", 0.0))
        run = loop.create_task(generator.run(start_s))
        if not await _attend(run, generator, inbox):
            return
        head, blob = pack_result(run.result())
        write_frame(out, head, blob)


async def _attend(
    run: asyncio.Task[Any], generator: LoadGenerator, inbox: asyncio.Queue[dict[str, Any] | None]
) -> bool:
    """Wait for the end of a run, report progress, and obey `stop`. Return False if the parent process has ended."""
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
                write_frame(
                    sys.stdout.buffer,
                    {"op": "progress", "finished": generator.finished, "in_flight": generator.in_flight},
                )
    finally:
        order.cancel()
    return True


async def _main() -> None:
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def read() -> None:
        while True:
            frame = read_frame(sys.stdin.buffer)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(inbox.put_nowait, None if frame is None else frame[0])
            if frame is None:
                return

    threading.Thread(target=read, daemon=True, name="inbox").start()
    await _serve(inbox)


def main() -> None:
    """Run the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_open_files_limit()
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(_main())


if __name__ == "__main__":
    main()
