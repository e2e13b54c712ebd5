"""Options of the command."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from scripts.cli.options import JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class BatchServerOptions:
    """Server."""

    stack: Annotated[str | None, Option("Send to the server of this stack.", metavar="NAME")] = None
    url: Annotated[str | None, Option("Send to the server at this address, without /v1.", metavar="URL")] = None
    ready_timeout: Annotated[
        float, Option("Maximum wait for a server that is not ready, in seconds.", least=0, metavar="SECONDS")
    ] = 1800.0
    request_timeout: Annotated[float, Option("Timeout of one request, in seconds.", least=1, metavar="SECONDS")] = (
        1800.0
    )
    usd_per_hour: Annotated[
        float | None, Option("Price of the server. Default: the price in the stack's plan.", least=0, metavar="USD")
    ] = None


@dataclass(frozen=True, kw_only=True)
class BatchLoadOptions:
    """Load."""

    concurrency: Annotated[
        int | None,
        Option("Concurrent requests. Default: `max-num-seqs` of the stack; 32 with --url.", least=1, most=4096),
    ] = None
    limit: Annotated[int | None, Option("Send at most this many requests in this run.", least=1)] = None
    max_cost: Annotated[
        float | None,
        Option("Stop sending when the time of this run has cost this much.", above=0, metavar="USD"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Options of the command."""

    input: Annotated[Path, Option("File of requests, one JSON object per line.", positional=True)]
    output: Annotated[Path, Option("File of responses. A file of an earlier run of the same input is continued.")]
    server: BatchServerOptions
    load: BatchLoadOptions
    as_json: JsonSwitch = False
