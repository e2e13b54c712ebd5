"""Options of the load tester, and of the stack that provides the server."""

from dataclasses import dataclass
from typing import Annotated

from gemma_serving.scripts.cli.options import Option
from loadtest.load_options import LoadTestOptions, ServerOptions


@dataclass(frozen=True, kw_only=True)
class BenchServerOptions(ServerOptions):
    """Server."""

    stack: Annotated[str | None, Option("Measure the server of this stack.", metavar="STACK")] = None
    usd_per_hour: Annotated[
        float | None,
        Option("Price of the server. Default: the price in the stack's plan.", least=0, metavar="USD"),
    ] = None
    accelerator: Annotated[
        str | None, Option("Accelerator of the server, to detect impossible results.", metavar="NAME")
    ] = None


@dataclass(frozen=True, kw_only=True)
class BenchOptions(LoadTestOptions):
    """Options of `gemma bench`."""

    server: BenchServerOptions
