"""Options of the load tester, and of the stack that provides the server."""

from dataclasses import dataclass
from typing import Annotated

from loadtest.options import LimitOptions, LoadOptions, ReportOptions, TrafficOptions
from scripts.cli.options import Option


@dataclass(frozen=True, kw_only=True)
class BenchServerOptions:
    """Server."""

    stack: Annotated[str | None, Option("Measure the server of this stack.", metavar="NAME")] = None
    url: Annotated[str | None, Option("Measure the server at this address, without /v1.", metavar="URL")] = None
    model: Annotated[str | None, Option("Model name. Default: the first served model.", metavar="ID")] = None
    usd_per_hour: Annotated[
        float | None,
        Option("Price of the server. Default: the price in the stack's plan.", least=0, metavar="USD"),
    ] = None
    accelerator: Annotated[
        str | None, Option("Accelerator of the server, to detect impossible results.", metavar="NAME")
    ] = None


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of `gemma bench`."""

    server: BenchServerOptions
    load: LoadOptions
    traffic: TrafficOptions
    limits: LimitOptions
    report: ReportOptions
