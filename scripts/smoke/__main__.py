"""Check a deployed server or any vLLM server.

  gemma smoke tpu-v6e1
  gemma smoke l4-12b-qat --agent
  gemma smoke --url URL --max-ttft-s 0.5

Compares each measurement with its threshold. The thresholds of a stack
come from its outputs; with --url, they are options. Metrics without a
threshold are reported but not checked. GEMMA_API_KEY is sent as a bearer
token. docs/smoke.md describes every check.
"""

import json
import sys
from dataclasses import dataclass, replace
from typing import Annotated, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.features import ServedFeatures
from gemma_serving.contracts.fields import as_mapping, documented, from_json
from gemma_serving.contracts.outputs import SmokeThresholds
from gemma_serving.contracts.three_answers import Absent
from gemma_serving.scripts.cli.command import Command, Effect, print_progress, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class SmokeServerOptions:
    """Server."""

    stack: Annotated[str | None, Option("Check the server of this stack.", metavar="STACK")] = None
    url: Annotated[str | None, Option("Check the server at this address.", metavar="URL", person=True)] = None
    model: Annotated[
        str | None, Option("With --url: name of the model. Default: the first served model.", metavar="ID", person=True)
    ] = None


@dataclass(frozen=True, kw_only=True)
class ThresholdOptions:
    """Thresholds with --url."""

    ready_budget_s: Annotated[float, Option("Timeout for server readiness, in seconds.", least=0.1, person=True)] = (
        120.0
    )
    max_ttft_s: Annotated[float | None, Option("Maximum time to first token, in seconds.", above=0, person=True)] = None
    min_decode_tok_per_s: Annotated[
        float | None, Option("Minimum rate of one stream, in tokens/s.", above=0, person=True)
    ] = None
    min_burst_tok_per_s: Annotated[
        float | None, Option("Minimum rate of the burst, in tokens/s.", above=0, person=True)
    ] = None
    burst_requests: Annotated[
        int, Option("Number of concurrent streams in the burst.", least=1, most=256, person=True)
    ] = 4
    max_model_len: Annotated[
        int | None, Option("max-model-len the server must report, in tokens.", least=1, person=True)
    ] = None
    features: Annotated[
        str | None, Option('Features as JSON, as in the output `features`: {"images": 2}.', metavar="JSON", person=True)
    ] = None


@dataclass(frozen=True, kw_only=True)
class SmokeOptions:
    """Options of the command."""

    server: SmokeServerOptions
    thresholds: ThresholdOptions
    agent: Annotated[
        bool, Option("Also check twenty tools at once, /v1/responses and /v1/messages, as coding agents use them.")
    ] = False
    as_json: JsonSwitch = False


def _smoke(options: SmokeOptions) -> ExitCode:
    from gemma_serving.scripts.logs.api import first_start
    from gemma_serving.scripts.smoke.checks import AGENT_CHECKS, CHECKS, run_smoke
    from gemma_serving.scripts.smoke.context import SmokeTarget, stack_target
    from gemma_serving.scripts.smoke.failure import ServerFailure
    from gemma_serving.scripts.smoke.render import publish
    from gemma_serving.scripts.stack.access import open_stack_access, open_url_access
    from gemma_serving.scripts.stack.deployed_plan import deployed_plan
    from gemma_serving.scripts.stack.serves import serving_facts

    server, start = options.server, Absent()
    if (server.stack is None) == (server.url is None):
        raise CommandRefusedError("No server selected. Pass STACK or --url URL.")
    if server.stack is not None:
        facts, outputs = serving_facts(server.stack)
        start = first_start(facts)
        failure = ServerFailure(server.stack) if outputs.target == "tpu" else None
        planned = deployed_plan(server.stack, outputs).smoke
        way, target = open_stack_access(outputs), stack_target(server.stack, outputs, planned, failure)
    else:
        way = open_url_access(server.url or "")
        features = _features(options.thresholds.features)
        target = SmokeTarget(model=server.model or "", thresholds=_thresholds(options.thresholds), features=features)
    with way as access:
        report = run_smoke(access, target, _progress, checks=(*CHECKS, *(AGENT_CHECKS if options.agent else ())))
    _progress("")
    publish(replace(report, start=start), as_json=options.as_json)
    return report.exit_code


def _thresholds(given: ThresholdOptions) -> SmokeThresholds:
    values = {key: value for key, value in vars(given).items() if key not in {"ready_budget_s", "features"}}
    return SmokeThresholds(startup_budget_s=given.ready_budget_s, **values)


def _features(given: str | None) -> ServedFeatures | None:
    if given is None:
        return None
    try:
        found: object = json.loads(given)
        unknown = set(as_mapping(found)) - {key for key, _ in documented(ServedFeatures)}
        if unknown:
            raise CommandRefusedError(f"--features has an unknown key: {min(unknown)}.")
        return from_json(ServedFeatures, found)
    except ValueError as error:
        raise CommandRefusedError(f"--features is invalid: {error}") from None


def _progress(text: str) -> None:
    """Show one line of progress. On a terminal, it replaces the previous line."""
    from gemma_serving.scripts.cli.transfer import overwrite_line

    if sys.stderr.isatty():
        overwrite_line(f"smoke: {text}" if text else "")
    elif text:
        print_progress("smoke", text)


COMMAND: Final = Command(
    name="smoke",
    effect=Effect.SENDS,
    help=__doc__,
    options=SmokeOptions,
    run=_smoke,
    needs="state",
    after_interrupt="No check ran.",
    exit_codes={
        ExitCode.DONE: "no check failed",
        ExitCode.FAILED: "a check failed",
        ExitCode.REFUSED: "refused, or the server could not be reached, which is not a failure of the server",
    },
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
