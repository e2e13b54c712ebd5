"""Measure a server, and compare the results with the stack's plan."""

import contextlib
import json
import re
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.engine.children import run_async
from gemma_serving.engine.state import read
from gemma_serving.scripts.bench.bench_options import BenchOptions
from gemma_serving.scripts.bench.catalog import roofline_of
from gemma_serving.scripts.bench.forecast import PlanForecast
from gemma_serving.scripts.cli.command import last_command, print_progress, print_text
from gemma_serving.scripts.stack.access import TOKEN_MARGIN_S, open_stack_access, open_url_access
from gemma_serving.scripts.stack.connection_errors import endpoint_of
from gemma_serving.scripts.stack.costs import recorded_costs
from gemma_serving.scripts.stack.deployed_plan import deployed_plan
from gemma_serving.scripts.stack.serves import serving_outputs
from loadtest.endpoint import Endpoint
from loadtest.errors import SweepError
from loadtest.progress import Reporter
from loadtest.settings import Hosting, SweepSettings
from loadtest.subcommands import CallingProgram, as_json, conclude, exit_code, sweep_of, sweep_settings
from loadtest.sweep import run_sweep

ALL: Final = "all"
"""Value of `--adapters` for the stack's adapters."""
RESULTS: Final = "results"
"""Folder of the results, ignored by git."""
NAME: Final = "bench"


def run_benchmark(options: BenchOptions) -> ExitCode:
    """Run the sweep, write the reports and return the exit code. Raises SweepError or CommandRefusedError if the sweep cannot start."""
    settings = _settings(options)
    options = _with_adapters(options)
    sweep = sweep_of(options, settings)
    with open_target(settings, options.server.accelerator) as (endpoint, ready):
        if options.report.out is None:
            print_progress(NAME, f"writing the results to {settings.out}")
        outcome = run_sweep(ready, sweep, endpoint, Reporter(NAME), run=run_async)
    files = conclude(settings, outcome, CallingProgram(name=NAME, words=last_command()))
    if options.report.as_json:
        print_text(json.dumps(as_json(settings, outcome, files)))
    return ExitCode(exit_code(outcome, allow_invalid=options.report.allow_invalid))


def _settings(options: BenchOptions) -> SweepSettings:
    server = options.server
    if server.stack is not None and server.url is not None:
        raise SweepError("STACK and --url cannot be combined. Pass one of them.")
    if server.stack is None and server.url is None:
        raise SweepError("No server selected. Pass STACK or --url URL.")
    options = _with_folder(options)
    return sweep_settings(
        options, url=server.url or "", model=server.model, usd_per_hour=server.usd_per_hour, stack=server.stack
    )


def _with_folder(options: BenchOptions) -> BenchOptions:
    """Return the options with a new folder for the results if none is given. Raises SweepError for --resume without one."""
    if options.report.out is not None:
        return options
    if options.report.resume:
        raise SweepError("--resume requires the folder of the sweep. Pass --out DIR.")
    server = options.server.stack or urlsplit(options.server.url or "").hostname or "url"
    out = Path(RESULTS) / re.sub(r"[^A-Za-z0-9.-]+", "-", server) / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"
    return replace(options, report=replace(options.report, out=out))


def _usd_per_hour(stack: str, outputs: StackOutputs) -> float | None:
    """Return the price of what serves a stack: a slice or one instance; None if it is unknown."""
    if outputs.target != "tpu":
        return outputs.plan.cost.usd_per_hour
    return next((costs.running for costs in recorded_costs(read(stack))), None)


def _with_adapters(options: BenchOptions) -> BenchOptions:
    """Return the options with the stack's adapters for `--adapters all`. Raises SweepError if none exists."""
    if options.traffic.adapters != (ALL,):
        return options
    stack = options.server.stack
    if stack is None:
        raise SweepError("--adapters all requires --stack. With --url, pass their names.")
    features = serving_outputs(stack).features
    if not features.adapters:
        raise SweepError(f"--adapters is all, but stack {stack} has no adapters.")
    return replace(options, traffic=replace(options.traffic, adapters=features.adapters))


@contextlib.contextmanager
def open_target(settings: SweepSettings, accelerator: str | None) -> Generator[tuple[Endpoint, SweepSettings]]:
    """Open access to the server, and complete the settings with the price and accelerator of the stack's plan."""
    if settings.stack is None:
        with open_url_access(settings.url) as access:
            roofline = roofline_of(settings.model or "", accelerator) if accelerator is not None else None
            if accelerator is not None and roofline is None:
                raise SweepError(
                    f"--accelerator {accelerator!r} with --model {settings.model!r} is not in the planner's catalog. "
                    "Omit it, or see `gemma plan --help`."
                )
            hosting = Hosting(accelerator=roofline.accelerator if roofline is not None else None)
            yield endpoint_of(access), replace(settings, url=access.base_url, roofline=roofline, hosting=hosting)
        return
    outputs = serving_outputs(settings.stack)
    if outputs.auth == "id-token" and settings.point_timeout_s > TOKEN_MARGIN_S:
        raise SweepError(
            f"--point-timeout is {settings.point_timeout_s:g}; it must be {TOKEN_MARGIN_S:g} or less, because an identity token is valid for one hour."
        )
    given_usd_per_hour = settings.usd_per_hour
    with open_stack_access(outputs) as access:
        yield (
            endpoint_of(access),
            replace(
                settings,
                url=outputs.endpoint,
                model=settings.model or outputs.served_model,
                usd_per_hour=_usd_per_hour(settings.stack, outputs)
                if given_usd_per_hour is None
                else given_usd_per_hour,
                hosting=Hosting(
                    accelerator=outputs.plan.accelerator, zone=outputs.zone or outputs.location, image=outputs.image
                ),
                kv_cache_tokens=outputs.plan.memory.kv_tokens * outputs.engines,
                forecast=PlanForecast(deployed_plan(settings.stack, outputs).answers),
                roofline=roofline_of(outputs.model, accelerator or outputs.plan.accelerator),
            ),
        )
