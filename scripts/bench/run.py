"""Run a sweep as the command line asks, write the reports, and tell how it ended."""

import contextlib
import json
import shlex
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from contracts.exit_codes import ExitCode
from engine.stack import stack_outputs
from scripts.bench.errors import SweepError
from scripts.bench.keep import keep_sweep
from scripts.bench.options import BenchOptions
from scripts.bench.progress import reporter_for_stderr
from scripts.bench.report import write_reports
from scripts.bench.roofline import roofline_of
from scripts.bench.settings import SweepSettings
from scripts.bench.store import read_results
from scripts.bench.sweep import SweepOutcome, run_sweep, seed_of
from scripts.bench.traffic.points import Sweep
from scripts.cli.command import say
from scripts.cli.measured.planned import deployed_plan
from scripts.cli.measured.record import now
from scripts.client.access import TOKEN_MARGIN_S, ServerAccess, open_stack_access, open_url_access

NOT_IN_JSON: Final = frozenset({"input_lens", "output_lens", "ttfts", "e2els", "start_times", "timeline"})
"""Fields of a result with one value per request or moment; --json leaves them out."""


def run_benchmark(options: BenchOptions) -> ExitCode:
    """Measure, write the reports, and return the exit code. Raises CommandRefusedError if the sweep cannot begin."""
    settings = _settings(options)
    sweep = options.load.sweep(seed_of(settings, options.load.seed), options.traffic.traffic(options.load))
    if settings.find:
        sweep = _search_sweep(options, sweep)
    since = now()
    with open_target(settings, options.server.accelerator) as (access, ready):
        outcome = run_sweep(ready, sweep, access, reporter_for_stderr())
    files = _written_reports(settings, outcome)
    _tell(settings, outcome, has_reports=bool(files))
    if settings.stack is not None and outcome.measured:
        keep_sweep(settings.stack, settings.out, since)
    if options.report.as_json:
        print(json.dumps(_as_json(settings, outcome, files)))
    if outcome.ending == "interrupted":
        return ExitCode.INTERRUPTED
    if outcome.found is not None:
        return ExitCode.DONE if outcome.found["valid"] else ExitCode.FAILED
    if outcome.ending == "unreachable":
        return ExitCode.REFUSED
    return ExitCode.FAILED if outcome.ending != "done" or outcome.empty or outcome.failing else ExitCode.DONE


def _search_sweep(options: BenchOptions, sweep: Sweep) -> Sweep:
    """Return the sweep of a search: without a load it is for a rate. Raises SweepError if the options do not allow a search."""
    load, traffic = options.load, sweep.traffic
    if options.report.slo is None:
        raise SweepError("--find slo needs the limits; add --slo, such as --slo ttft=1,tpot=0.05.")
    given = {
        "--turns": traffic.turns > 1,
        "--trace": traffic.trace is not None,
        "--ramp": traffic.ramp is not None,
        "--duration": load.duration is not None,
        "--repeats": load.repeats > 1,
        "--stop-when-saturated": load.stop_when_saturated,
    }
    for option in (option for option, is_given in given.items() if is_given):
        raise SweepError(f"--find slo and {option} exclude each other; leave one of them out.")
    if load.concurrency and load.request_rate:
        raise SweepError("--find slo searches one load; give --concurrency or --request-rate.")
    for name, lengths in (("--input-tokens", sweep.input_tokens), ("--output-tokens", sweep.output_tokens)):
        if len(lengths) > 1 and traffic.dataset is None:
            raise SweepError(f"--find slo searches with one length; give one of {name}, such as {name} {lengths[0]}.")
    if load.concurrency:
        return sweep
    if options.report.slo.ttft_s is None and options.report.slo.e2e_s is None:
        raise SweepError(
            "--find slo for a rate needs a limit of ttft or e2e, because requests that wait in a queue keep tpot; add one to --slo, or give --concurrency."
        )
    return replace(sweep, concurrency=(), request_rate=load.request_rate or (1.0,))


def _settings(options: BenchOptions) -> SweepSettings:
    server, load, limits, report = options.server, options.load, options.limits, options.report
    if (server.stack is None) == (server.url is None):
        raise SweepError("give either --stack NAME or --url URL.")
    if report.out is None:
        raise SweepError("give --out DIR, the folder for results and report.")
    return SweepSettings(
        url=server.url or "",
        model=server.model,
        stack=server.stack,
        find=report.find is not None,
        slo_share=report.slo_share,
        usd_per_hour=server.usd_per_hour,
        out=report.out,
        resume=report.resume,
        objective=report.slo,
        chat=not load.completions,
        poisson=not load.even_arrivals,
        warm_up=load.warm_up,
        stop_when_saturated=load.stop_when_saturated,
        extra_body=load.extra_body or {},
        workers=limits.workers,
        max_in_flight=limits.max_in_flight,
        max_failed=limits.max_failed,
        honour_retry_after=limits.honour_retry_after,
        request_limit_s=limits.request_limit,
        stall_limit_s=limits.stall_limit,
        point_limit_s=limits.point_limit,
    )


@contextlib.contextmanager
def open_target(settings: SweepSettings, accelerator: str | None) -> Generator[tuple[ServerAccess, SweepSettings]]:
    """Open access to the server, and complete the settings with the price and the accelerator of the stack's plan."""
    if settings.stack is None:
        with open_url_access(settings.url) as access:
            roofline = roofline_of(settings.model or "", accelerator) if accelerator is not None else None
            if accelerator is not None and roofline is None:
                raise SweepError(
                    f"--accelerator {accelerator!r} with --model {settings.model!r} is not in the planner's catalog; leave it out, or see scripts.plan --help."
                )
            yield access, replace(settings, url=access.base_url, roofline=roofline)
        return
    outputs = stack_outputs(settings.stack)
    if outputs.auth == "id-token" and settings.point_limit_s > TOKEN_MARGIN_S:
        raise SweepError(
            f"--point-limit is {settings.point_limit_s:g}; it must be {TOKEN_MARGIN_S:g} or less, because an identity token is valid for one hour."
        )
    given_usd_per_hour = settings.usd_per_hour
    with open_stack_access(outputs) as access:
        yield (
            access,
            replace(
                settings,
                url=outputs.endpoint,
                model=settings.model or outputs.served_model,
                usd_per_hour=outputs.plan.cost.usd_per_hour if given_usd_per_hour is None else given_usd_per_hour,
                tokenizer=outputs.model,
                answers=deployed_plan(settings.stack, outputs).answers if settings.find else None,
                roofline=roofline_of(outputs.model, accelerator or outputs.plan.accelerator),
            ),
        )


def _written_reports(settings: SweepSettings, outcome: SweepOutcome) -> Sequence[Path]:
    return write_reports(settings.out) if outcome.stored else ()


def _tell(settings: SweepSettings, outcome: SweepOutcome, *, has_reports: bool) -> None:
    """Tell on stderr how the sweep ended and how to continue it."""
    of_all = f"of {outcome.stored} points"
    if outcome.failing:
        say(
            "bench",
            f"{outcome.failing} {of_all} FAILED: more than {settings.max_failed:.3g} of their requests had no complete answer (--max-failed); see the report.",
        )
    if outcome.simulated is not None:
        say("bench", "the server is SIMULATED: its figures say nothing about real hardware.")
    if outcome.invalid:
        say(
            "bench",
            f"{outcome.invalid} {of_all} are INVALID: the client was the limit, or the figures cannot be true; see the report.",
        )
    if outcome.found is not None:
        say("bench", f"{outcome.found['sentence']}.")
    if outcome.empty:
        say("bench", f"{outcome.empty} {of_all} have no complete answer; --resume measures them again.")
    if outcome.ending != "done":
        kept = f"{outcome.stored} of {outcome.planned} points are complete in {settings.out}"
        say("bench", f"{outcome.detail}; {kept}. Continue with: {_continuation(settings)}")
    elif has_reports:
        say("bench", f"{outcome.stored} points in {settings.out}; the report is {settings.out / 'report.html'}.")
        command = read_results(settings.out)[-1]["vllm_command"]
        if command:
            say("bench", f"the last point with vLLM's own tool: {command}")


def _continuation(settings: SweepSettings) -> str:
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if not words:
        return f"--resume with --out {settings.out}"
    return shlex.join(["python", "-m", "scripts.bench", *words, "--resume"])


def _as_json(settings: SweepSettings, outcome: SweepOutcome, files: Sequence[Path]) -> dict[str, object]:
    results = read_results(settings.out) if outcome.stored else []
    return {
        "schema_version": 1,
        "ending": outcome.ending,
        "out": str(settings.out),
        "simulated": outcome.simulated,
        "planned": outcome.planned,
        "stored": outcome.stored,
        "invalid": outcome.invalid,
        "failing": outcome.failing,
        "found": outcome.found,
        "left_out": [dict(row) for row in outcome.left_out],
        "files": [str(file) for file in files],
        "points": [{key: value for key, value in row.items() if key not in NOT_IN_JSON} for row in results],
    }
