"""Benchmark of a deployed server, or of any OpenAI-compatible one: `python -m scripts.bench --stack NAME | --url URL --model ID --out DIR`.

Closed loops (--concurrency), open loops (--request-rate), or both, over grids of input and output lengths. Every point is written as it
ends; a sweep that was stopped goes on with --resume. `python -m scripts.bench compare A B` compares two folders.

Exit codes: 0 done, 1 the sweep ended early or a point has no complete answer (compare: something got worse), 2 refused, 130 interrupted.
"""

import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from scripts.bench import points as presets
from scripts.bench.options import parse_extra_body, parse_objective, parse_rates, parse_whole_numbers
from scripts.bench.points import Sweep, SweepError
from scripts.bench.progress import reporter_for_stderr
from scripts.bench.roofline import roofline_of
from scripts.bench.store import read_results
from scripts.bench.sweep import Settings, SweepOutcome, run_sweep, seed_of
from scripts.client.access import TOKEN_MARGIN_S, Access, open_access, server_root
from scripts.client.events import as_mapping
from scripts.errors import DONE, FAILED, INTERRUPTED, ScriptError
from scripts.pulumi.stack import stack_outputs

API_KEY_VARIABLE: Final = "OPENAI_API_KEY"
PRESETS: Final = {
    "quick": Sweep(
        concurrency=presets.QUICK_CONCURRENCY,
        request_rate=(),
        input_tokens=presets.QUICK_INPUT_TOKENS,
        output_tokens=presets.DEFAULT_OUTPUT_TOKENS,
        requests=None,
        duration_s=None,
        seed=0,
    ),
    "grid": Sweep(
        concurrency=presets.GRID_CONCURRENCY,
        request_rate=(),
        input_tokens=presets.GRID_INPUT_TOKENS,
        output_tokens=presets.DEFAULT_OUTPUT_TOKENS,
        requests=None,
        duration_s=presets.GRID_DURATION_S,
        seed=0,
    ),
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, help=__doc__)


def _interrupt(_signum: int, _frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _exits() -> Generator[None]:
    """Turns what a person can mend into one sentence and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except ScriptError as error:
        print(f"bench: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        print("bench: interrupted.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


@app.callback(invoke_without_command=True)
def bench(  # noqa: D103, PLR0917 - typer's options
    context: typer.Context,
    url: Annotated[str | None, typer.Option(help="Address of the server, without /v1.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model; the first that the server serves by default.")
    ] = None,
    stack: Annotated[str | None, typer.Option(help="Measure the server of this stack.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Requests in flight, e.g. 1,8,64 (closed loop).")] = None,
    request_rate: Annotated[str | None, typer.Option(help="Requests a second, e.g. 0.5,2,8 (open loop).")] = None,
    input_tokens: Annotated[str | None, typer.Option(help="Prompt lengths, e.g. 128,1024.")] = None,
    output_tokens: Annotated[str | None, typer.Option(help="Answer lengths, e.g. 128.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests a point.")] = None,
    duration: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds a point; nothing is sent afterwards.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of prompts and arrivals; drawn and recorded by default.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="quick (8 points, minutes) or grid (12 x 12 points).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results and report.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the sweep in --out.")] = False,
    slo: Annotated[
        str | None, typer.Option(help="Objective for goodput in seconds, e.g. ttft=0.5,tpot=0.05,e2e=10.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Measure every point so many times.")] = 1,
    warm_up: Annotated[int | None, typer.Option(min=0, help="Requests before each point that are not counted.")] = None,
    stop_when_saturated: Annotated[
        bool, typer.Option("--stop-when-saturated", help="Leave out loads beyond saturation.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, max=64, help="Processes of the load generator.")] = None,
    max_in_flight: Annotated[int, typer.Option(min=1, help="Open loop: most requests under way.")] = 4096,
    even_arrivals: Annotated[
        bool, typer.Option("--even-arrivals", help="Open loop: an even beat instead of Poisson arrivals.")
    ] = False,
    completions: Annotated[bool, typer.Option("--completions", help="Use /v1/completions instead of chat.")] = False,
    request_limit: Annotated[float, typer.Option(min=1, help="Seconds that one request may take.")] = 600.0,
    stall_limit: Annotated[
        float, typer.Option(min=0.5, help="Seconds without a byte in the middle of an answer.")
    ] = 60.0,
    point_limit: Annotated[float, typer.Option(min=1, help="Seconds that one point may take.")] = 1800.0,
    usd_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Price of the server; the stack's plan by default.")
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option(help="What the server runs on, to flag impossible figures.")
    ] = None,
    extra_body: Annotated[str | None, typer.Option(help="JSON object to add to every request.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    with _exits():
        if (stack is None) == (url is None):
            raise SweepError("give either --stack NAME or --url URL.")
        if out is None:
            raise SweepError("give --out DIR, the folder for results and report.")
        if preset is not None and preset not in PRESETS:
            raise SweepError(f"--preset is {preset!r}; it must be quick or grid.")
        settings = Settings(
            url=url or "",
            model=model,
            out=out,
            chat=not completions,
            resume=resume,
            objective=parse_objective(slo) if slo else None,
            warm_up=warm_up,
            workers=workers,
            max_in_flight=max_in_flight,
            poisson=not even_arrivals,
            stop_when_saturated=stop_when_saturated,
            request_limit_s=request_limit,
            stall_limit_s=stall_limit,
            point_limit_s=point_limit,
            usd_per_hour=usd_per_hour,
            extra_body=parse_extra_body(extra_body) if extra_body else {},
            stack=stack,
        )
        base = PRESETS[preset or "quick"]
        loads_given = concurrency is not None or request_rate is not None
        sweep = Sweep(
            concurrency=parse_whole_numbers("--concurrency", concurrency)
            if concurrency
            else (() if loads_given else base.concurrency),
            request_rate=parse_rates("--request-rate", request_rate) if request_rate else base.request_rate,
            input_tokens=parse_whole_numbers("--input-tokens", input_tokens) if input_tokens else base.input_tokens,
            output_tokens=parse_whole_numbers("--output-tokens", output_tokens)
            if output_tokens
            else base.output_tokens,
            requests=requests,
            duration_s=duration if duration is not None else (base.duration_s if requests is None else None),
            seed=seed_of(settings, seed),
            repeats=repeats,
            by_waves=duration is None,
        )
        with _target(settings, accelerator) as (access, ready):
            outcome = run_sweep(ready, sweep, access, reporter_for_stderr())
        code = _finish(ready, outcome, as_json=as_json)
    raise typer.Exit(code)


@contextlib.contextmanager
def _target(settings: Settings, accelerator: str | None) -> Generator[tuple[Access, Settings]]:
    """The way to the server, and the settings with what the stack's plan knows of price and accelerator."""
    api_key = os.environ.get(API_KEY_VARIABLE) or None
    if settings.stack is None:
        base = server_root(settings.url)
        roofline = None
        if accelerator is not None:
            roofline = roofline_of(settings.model or "", accelerator)
            if roofline is None:
                raise SweepError(
                    f"--accelerator {accelerator!r} with --model {settings.model!r} is not in the planner's catalog; leave it out, or see scripts.plan --help."
                )
        with open_access(endpoint=base, auth="none", api_key=api_key) as access:
            yield access, replace(settings, url=base, roofline=roofline)
        return
    outputs = stack_outputs(settings.stack)
    if outputs.auth == "id-token" and settings.point_limit_s > TOKEN_MARGIN_S:
        raise SweepError(
            f"--point-limit is {settings.point_limit_s:g}; it must be {TOKEN_MARGIN_S:g} or less where an identity token is needed, which holds one hour."
        )
    plan = outputs.plan
    price = as_mapping(plan.get("cost")).get("usd_per_hour")
    with open_access(endpoint=outputs.endpoint, auth=outputs.auth, tunnel=outputs.tunnel, api_key=api_key) as access:
        yield (
            access,
            replace(
                settings,
                url=outputs.endpoint,
                model=settings.model or outputs.served_model,
                usd_per_hour=settings.usd_per_hour
                if settings.usd_per_hour is not None
                else (float(price) if isinstance(price, int | float) else None),
                roofline=roofline_of(outputs.model, accelerator or str(plan.get("accelerator"))),
            ),
        )


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr)


def _continuation(settings: Settings) -> str:
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return (
        shlex.join(["python", "-m", "scripts.bench", *words, "--resume"])
        if words
        else f"--resume with --out {settings.out}"
    )


def _finish(settings: Settings, outcome: SweepOutcome, *, as_json: bool) -> int:
    """Write the reports, say how it ended, and give the exit code."""
    from scripts.bench.report import write_reports  # noqa: PLC0415 - slow to load, and needed here only

    files: list[Path] = []
    if outcome.stored:
        files = write_reports(settings.out)
    if outcome.simulated is not None:
        _say("the server is SIMULATED: its figures say nothing about real hardware.")
    if outcome.invalid:
        _say(
            f"{outcome.invalid} of {outcome.stored} points are INVALID: the client was the limit, or the figures cannot be true; see the report."
        )
    if outcome.empty:
        _say(f"{outcome.empty} of {outcome.stored} points have no complete answer; --resume measures them again.")
    if outcome.ending != "done":
        _say(
            f"{outcome.detail}; {outcome.stored} of {outcome.planned} points are complete in {settings.out}. Go on with: {_continuation(settings)}"
        )
    elif files:
        last = read_results(settings.out)[-1]
        _say(f"{outcome.stored} points in {settings.out}; the report is {settings.out / 'report.html'}.")
        _say(f"the last point by vLLM's own tool: {last['vllm_command']}")
    code = (
        INTERRUPTED
        if outcome.ending == "interrupted"
        else FAILED
        if outcome.ending != "done" or outcome.empty
        else DONE
    )
    if as_json:
        slim = ("input_lens", "output_lens", "ttfts", "e2els", "start_times")
        rows = [
            {k: v for k, v in row.items() if k not in slim}
            for row in (read_results(settings.out) if outcome.stored else [])
        ]
        print(
            json.dumps(
                {
                    "schema_version": 1,
                    "ending": outcome.ending,
                    "out": str(settings.out),
                    "simulated": outcome.simulated,
                    "planned": outcome.planned,
                    "stored": outcome.stored,
                    "invalid": outcome.invalid,
                    "files": [str(file) for file in files],
                    "points": rows,
                }
            )
        )
    return code


@app.command()
def compare(  # noqa: PLR0917 - typer's options
    before: Annotated[Path, typer.Argument(help="Folder of the sweep to compare with.")],
    after: Annotated[Path, typer.Argument(help="Folder of the sweep in question.")],
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Share by which a figure may get worse.")] = 0.05,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Confidence of the intervals.")] = 0.95,
    out: Annotated[Path | None, typer.Option(help="Write the Markdown to this file too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Compare two sweeps point by point; Markdown for a pull request. Exit code 1 when something got worse beyond the threshold."""
    from scripts.bench.compare import compare_folders, comparison_json, comparison_markdown  # noqa: PLC0415 - slow to load, and needed here only

    with _exits():
        comparison = compare_folders(before, after, threshold=threshold, confidence=confidence)
        text = comparison_markdown(comparison)
        if out is not None:
            out.write_text(text, encoding="utf-8")
        print(json.dumps(comparison_json(comparison)) if as_json else text)
        code = FAILED if comparison.worse else DONE
    raise typer.Exit(code)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="Folder of a sweep.")]) -> None:
    """Write the reports of a folder again from its results.jsonl."""
    from scripts.bench.report import write_reports  # noqa: PLC0415 - slow to load, and needed here only

    with _exits():
        for path in write_reports(folder):
            print(path)


if __name__ == "__main__":
    app()
