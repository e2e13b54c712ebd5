"""Show the state, health, load, cost, drift and next command of stacks.

  gemma status
  gemma status tpu-v6e1 --watch

Reads Google Cloud, the servers and the states concurrently. If a source does not respond, the output names it and its error and shows the
rest. Changes nothing, and opens a tunnel only with --tunnel.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, print_text, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option

if TYPE_CHECKING:
    from gemma_serving.scripts.status.collect import StatusRequest
    from gemma_serving.scripts.status.render import ReportView
    from gemma_serving.scripts.status.report import StatusReport

DEFAULT_INTERVAL_S: Final = 10.0


def _api_price(text: str) -> tuple[float, float]:
    """Return the price of input and of output tokens. Raises ValueError with the allowed form."""
    try:
        given = [float(part) for part in text.split(",")]
    except ValueError:
        given = []
    if len(given) not in {1, 2} or not all(0 <= usd < math.inf for usd in given) or not given[-1]:
        raise ValueError("dollars per million tokens: one price, or IN,OUT such as 0.15,0.60")
    return given[0], given[-1]


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """Options of the command."""

    stack: Annotated[str | None, Option("Name of the stack. Default: all deployed stacks.", metavar="STACK")] = None
    all_stacks: Annotated[bool, Option("Show stacks that are not deployed too.", flag="--all", person=True)] = False
    watch: Annotated[bool, Option("Refresh until Ctrl-C. Needs a terminal.", person=True)] = False
    interval_s: Annotated[float, Option("Interval of --watch in seconds.", flag="--interval", least=1, person=True)] = (
        DEFAULT_INTERVAL_S
    )
    tunnel: Annotated[bool, Option("Open a tunnel to servers that need one, and query them.")] = False
    wake: Annotated[bool, Option("Query services scaled to zero too. This starts an instance, which costs money.")] = (
        False
    )
    refresh: Annotated[
        bool,
        Option(
            "Compare every resource with Google Cloud, with the engine, which runs the program of the folder. Takes some seconds per stack."
        ),
    ] = False
    metrics: Annotated[bool, Option("Also show every metric of the queried servers, as totals over all labels.")] = (
        False
    )
    api_price: Annotated[
        tuple[float, float] | None,
        Option(
            "Compare with a public API at this price per million tokens, in dollars.",
            metavar="IN,OUT",
            parse=_api_price,
        ),
    ] = None
    utc: Annotated[bool, Option("Print times in UTC instead of this machine's time zone.", person=True)] = False
    as_json: JsonSwitch = False


def _status(options: StatusOptions) -> ExitCode:
    from gemma_serving.scripts.status.collect import StatusRequest, collect

    request = StatusRequest(
        stack=options.stack,
        tunnel=options.tunnel,
        wake=options.wake,
        refresh=options.refresh,
        metrics=options.metrics,
        api=options.api_price,
    )
    if options.watch:
        _watch(request, options)
    report = collect(request)
    _show(report, options)
    return ExitCode.DONE if report.complete else ExitCode.FAILED


def _show(report: "StatusReport", options: StatusOptions) -> None:
    if options.as_json:
        print_text(json.dumps(report.to_json()))
        return
    from gemma_serving.scripts.cli.tables import console

    console(sys.stdout).print(_view(report, options), crop=False)
    for status in report.stacks:
        for name, value in ((status.server.metrics if status.server else None) or {}).items():
            print_text(f"{status.stack} {name} {value}")


def _view(report: "StatusReport", options: StatusOptions) -> "ReportView":
    from gemma_serving.scripts.status.render import ReportView

    is_whole = options.all_stacks or options.stack is not None
    return ReportView(report, zone_is_utc=options.utc, stacks="all" if is_whole else "deployed")


def _watch(
    request: "StatusRequest", options: StatusOptions, *, sleep: Callable[[float], None] = time.sleep
) -> NoReturn:
    """Show the status until Ctrl-C. Raises CommandRefusedError without a terminal."""
    if options.as_json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        raise CommandRefusedError(
            "--watch needs a terminal, and no --json. In a program, run `gemma status --json` in a loop."
        )
    from rich.live import Live

    from gemma_serving.scripts.cli.tables import console
    from gemma_serving.scripts.status.collect import collect

    view = _view(collect(request), options)
    with Live(view, console=console(sys.stdout), auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            sleep(options.interval_s)
            live.update(_view(collect(request), options), refresh=True)


COMMAND: Final = Command(
    name="status",
    help=__doc__,
    options=StatusOptions,
    run=_status,
    needs="state",
    after_interrupt="Nothing was changed.",
    exit_codes={ExitCode.FAILED: "a source does not respond"},
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
