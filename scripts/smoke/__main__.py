"""Smoke checks of a deployed server: `python -m scripts.smoke --stack NAME`, or `--url URL --model ID` for any OpenAI-compatible server.

Prints a table of what was measured against what was wanted. Exit codes: 0 all well, 1 something fell short, 2 refused (wrong
arguments, no such stack, no way to the server), 130 interrupted.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn, TextIO

import typer
from rich.console import Console

from scripts.client.access import open_access, server_root
from scripts.errors import INTERRUPTED, REFUSED, ScriptError
from scripts.pulumi.stack import stack_outputs
from scripts.smoke import render
from scripts.smoke.results import SmokeReport
from scripts.smoke.run import run_smoke, smoke_stack
from scripts.smoke.target import DEFAULT_BURST_REQUESTS, DEFAULT_READY_BUDGET_S, Target, Thresholds

API_KEY_VARIABLE: Final = "OPENAI_API_KEY"
LOG_WIDTH: Final = 150


def _refuse(message: str) -> NoReturn:
    print(f"smoke: {message}", file=sys.stderr)
    raise typer.Exit(REFUSED)


def _say(text: str) -> None:
    # On a terminal one line that is written over, in a log a line each.
    if sys.stderr.isatty():
        print(f"\r\033[Ksmoke: {text}"[: 7 + LOG_WIDTH], end="", file=sys.stderr, flush=True)
    else:
        print(f"smoke: {text}", file=sys.stderr, flush=True)


def _end_of_progress() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _of_stack(stack: str, api_key: str | None) -> SmokeReport:
    return smoke_stack(stack, stack_outputs(stack), _say, api_key=api_key)


def _of_url(url: str, target: Target, api_key: str | None) -> SmokeReport:
    with open_access(endpoint=server_root(url), auth="none", api_key=api_key) as access:
        return run_smoke(access, target, _say)


def _interrupt(_signum: int, _frame: object) -> None:
    raise KeyboardInterrupt


def smoke(  # noqa: D103, PLR0917 - typer's options; the help text is the decorator's
    stack: Annotated[
        str | None, typer.Option(help="Check the server of this stack; thresholds come from its outputs.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Check the server at this address instead.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model to ask for; needed with --url.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write the report as JUnit XML to this file too.")] = None,
    ready_budget_s: Annotated[
        float, typer.Option(min=0.1, help="With --url: seconds until the server must be ready.")
    ] = DEFAULT_READY_BUDGET_S,
    max_ttft_s: Annotated[
        float | None, typer.Option(help="With --url: longest time to first token, in seconds.")
    ] = None,
    min_decode_tok_per_s: Annotated[float | None, typer.Option(help="With --url: least speed of one stream.")] = None,
    min_burst_tok_per_s: Annotated[
        float | None, typer.Option(help="With --url: least speed of the burst together.")
    ] = None,
    burst_requests: Annotated[
        int, typer.Option(min=1, max=256, help="With --url: streams in the burst.")
    ] = DEFAULT_BURST_REQUESTS,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="With --url: the length that the server should state.")
    ] = None,
    expect_reasoning: Annotated[bool, typer.Option(help="With --url: the server has a reasoning parser.")] = False,
    expect_tool_calls: Annotated[bool, typer.Option(help="With --url: the server has a tool-call parser.")] = False,
) -> None:
    api_key = os.environ.get(API_KEY_VARIABLE) or None
    if (stack is None) == (url is None):
        _refuse("give either --stack NAME or --url URL --model ID.")
    if url is not None and not model:
        _refuse("--url needs --model ID, the name that the server serves.")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if stack is not None:
            report = _of_stack(stack, api_key)
        else:
            thresholds = Thresholds(
                ready_budget_s=ready_budget_s,
                max_ttft_s=max_ttft_s,
                min_decode_tok_per_s=min_decode_tok_per_s,
                min_burst_tok_per_s=min_burst_tok_per_s,
                burst_requests=burst_requests,
                max_model_len=max_model_len,
            )
            target = Target(
                model=str(model),
                thresholds=thresholds,
                expect_reasoning=expect_reasoning,
                expect_tool_calls=expect_tool_calls,
            )
            report = _of_url(str(url), target, api_key)
    except ScriptError as error:
        print(f"smoke: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        print("smoke: interrupted before the first check.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    _end_of_progress()
    _publish(report, as_json=as_json, junit=junit)
    raise typer.Exit(report.exit_code)


def _publish(report: SmokeReport, *, as_json: bool, junit: Path | None) -> None:
    if junit is not None:
        try:
            junit.parent.mkdir(parents=True, exist_ok=True)
            junit.write_text(render.to_junit(report), encoding="utf-8")
        except OSError as error:
            _refuse(f"--junit {junit} cannot be written: {error.strerror}.")
    if as_json:
        print(json.dumps(render.to_json(report)))
        render.print_table(report, _console(sys.stderr))
    else:
        render.print_table(report, _console(sys.stdout))


def _console(stream: TextIO) -> Console:
    """As wide as the terminal; in a log as wide as the table likes to be."""
    return Console(file=stream, width=None if stream.isatty() else LOG_WIDTH)


def main() -> None:
    """Entry point."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=__doc__)(smoke)
    app()


if __name__ == "__main__":
    main()
