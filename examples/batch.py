"""Send a file of requests to a server, and append one line per request to a file of results.

  gemma connect STACK -- .venv/bin/python examples/batch.py requests.jsonl results.jsonl

The requests have the format of OpenAI's batch API. After an interruption, run it again. It sends only those without a result.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from openai import AsyncOpenAI, BadRequestError

CONCURRENCY = 32


def finished(results: Path) -> set[str]:
    """Return the ids that have a result. Remove a last line that an interruption cut off."""
    results.touch()
    raw = results.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    os.truncate(results, len(whole))
    return {json.loads(line)["custom_id"] for line in whole.splitlines()}


async def send_all(source: Path, results: Path) -> None:
    """Send each request without a result, at most CONCURRENCY concurrently."""
    requests = {request["custom_id"]: request for request in map(json.loads, source.open(encoding="utf-8"))}
    done = finished(results)
    waiting = iter([request for name, request in requests.items() if name not in done])
    with results.open("a", encoding="utf-8") as file:
        async with AsyncOpenAI(max_retries=8) as client, asyncio.TaskGroup() as workers:

            async def work() -> None:
                for request in waiting:
                    path = request["url"].removeprefix("/v1")
                    try:
                        body = await client.post(path, cast_to=object, body=request["body"])
                        response = {"status_code": 200, "body": body}
                    except BadRequestError as error:  # fails again
                        response = {"status_code": 400, "body": error.body}
                    file.write(json.dumps({"custom_id": request["custom_id"], "response": response}) + "\n")
                    file.flush()

            for _ in range(CONCURRENCY):
                workers.create_task(work())


if __name__ == "__main__":
    try:
        asyncio.run(send_all(Path(sys.argv[1]), Path(sys.argv[2])))
    except KeyboardInterrupt:
        sys.exit("Interrupted. Run it again to send the other requests.")
    except OSError as error:
        sys.exit(f"{error}. Free space or choose another place, then run it again to send the other requests.")
    except ExceptionGroup as failures:
        sys.exit(f"{failures.exceptions[0]!r} Run it again to send the other requests.")
