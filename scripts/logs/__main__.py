"""Print the server logs of a stack.

  gemma logs tpu-v6e1 --follow
  gemma logs l4-qat --since 1d

Redacts secrets. Reads Cloud Logging, so logs are available while the server starts and after it was deleted. A TPU node writes its logs there
itself. Known causes of failures and their fixes are printed at the end. Log lines go to stdout, everything else to stderr.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.planning.units import parse_duration_s
from gemma_serving.scripts.cli.command import Command, print_progress, print_text, run_command
from gemma_serving.scripts.cli.options import Option, StackName

if TYPE_CHECKING:
    from gemma_serving.cloud.server_logs import ServerLine
    from gemma_serving.contracts.stack_facts import StackFacts
    from gemma_serving.scripts.logs.place import ServerLog
    from gemma_serving.stacks.hooks.failure_hints import Cause

_KEPT: Final = 1000
"""Lines that --follow searches for a known cause."""


def _ago(text: str) -> int:
    try:
        return parse_duration_s(text)
    except ValueError:
        raise ValueError('a duration such as "90s", "10m", "4h" or "1d"') from None


@dataclass(frozen=True, kw_only=True)
class LogsOptions:
    """Options of the command."""

    stack: StackName
    follow: Annotated[bool, Option("Print new lines until Ctrl-C.", person=True)] = False
    since_s: Annotated[
        int | None,
        Option("Print logs of the last DURATION. Default: 1h.", flag="--since", metavar="DURATION", parse=_ago),
    ] = None
    lines: Annotated[int, Option("Maximum number of lines. Prints the newest.", least=1, most=10_000)] = 200
    summarize: Annotated[
        bool,
        Option(
            "Let the stack's model summarize these lines, without --follow. This may start an instance, which costs money."
        ),
    ] = False
    utc: Annotated[bool, Option("Print times in UTC instead of this machine's time zone.", person=True)] = False
    as_json: Annotated[
        bool, Option("Print one JSON object on stdout; with --follow, one per line.", flag="--json", person=True)
    ] = False


def _logs(options: LogsOptions) -> ExitCode:
    from gemma_serving.cloud import google_api
    from gemma_serving.contracts.errors import ScriptError
    from gemma_serving.contracts.masking import LineMask
    from gemma_serving.engine import state as states
    from gemma_serving.scripts.logs.place import server_log
    from gemma_serving.scripts.logs.reading import api_keys, follow, newest_cause, newest_lines
    from gemma_serving.scripts.stack.facts import read_facts
    from gemma_serving.scripts.stack.serves import GOOGLE_LIMIT_S, require_deployed, serves_now

    state = states.read(options.stack)
    log = server_log(state)
    secrets, api = (), google_api.connect(log.project)
    try:
        secrets = api_keys(log)
    except ScriptError:
        _say("cannot read the stack's API key, so lines that contain it are not masked")
    facts = read_facts(state, "server", limit_s=GOOGLE_LIMIT_S)
    since = datetime.now(UTC) - timedelta(seconds=3600 if options.since_s is None else options.since_s)
    try:
        found = newest_lines(api, log, since, options.lines, LineMask(secrets))
    except ScriptError:
        require_deployed(facts)
        raise
    if not found:
        require_deployed(facts)
    print_heading(options, log)
    serves = serves_now(facts)
    if serves.word == "ended":
        _say(serves.why)
    if options.follow and not options.summarize:
        # A line after the first printed one may become visible late.
        start = found[0].moment if len(found) == options.lines else since
        _follow(options, log, found, follow(api, log, start, LineMask(secrets), say=_say))
    cause = newest_cause(log, found)
    _show(options, log, found, cause)
    for note in _notes(options, found, cause, facts):
        _say(note)
    return ExitCode.DONE


def _show(options: LogsOptions, log: "ServerLog", found: "Sequence[ServerLine]", cause: "Cause | None") -> None:
    summary = _summary(options.stack, found) if options.summarize and found else None
    if options.as_json:
        known = None if cause is None else {"finding": cause.finding, "line": cause.line, "fix": cause.hint}
        place = {"stack": log.stack, "project": log.project, "target": log.target}
        lines = [line_json(line) for line in found]
        print_text(json.dumps({"schema_version": 1, **place, "lines": lines, "cause": known, "summary": summary}))
    else:
        print_lines(options, found)
    if summary is not None and not options.as_json:
        print_text(f"\nSummary by {summary['model']}, which read untrusted text:\n{summary['text']}")


def _summary(stack: str, found: "Sequence[ServerLine]") -> dict[str, object]:
    from gemma_serving.contracts.plain_text import for_model
    from gemma_serving.scripts.logs.summary import summary_of

    return asdict(
        summary_of(stack, [for_model(f"{line.moment:%m-%d %H:%M:%S} {line.source} {line.text}") for line in found])
    )


def _notes(
    options: LogsOptions, found: "Sequence[ServerLine]", cause: "Cause | None", facts: "StackFacts"
) -> "Iterator[str]":
    """Yield what to know and to do after the lines."""
    from gemma_serving.scripts.logs.place import sentence
    from gemma_serving.scripts.stack.serves import failure_of, next_start

    if not found:
        yield f"no logs of stack {options.stack} in this period. Pass --since 1d to search a longer one."
    elif len(found) == options.lines:
        yield f"showing the newest {options.lines} lines. Pass --lines N for more."
    if cause is not None:
        yield sentence(cause)
    if failure_of(facts):
        yield next_start(options.stack)


def _follow(
    options: LogsOptions, log: "ServerLog", found: "Sequence[ServerLine]", more: "Iterator[ServerLine | None]"
) -> None:
    from gemma_serving.scripts.logs.place import sentence
    from gemma_serving.scripts.logs.reading import newest_cause

    print_lines(options, found)
    recent, fresh = list(found), True
    reported: set[str] = set()
    for line in more:
        if line is not None and line not in found:
            print_lines(options, [line])
            recent, fresh = [*recent[-_KEPT:], line], True
        elif line is None and fresh:
            cause = newest_cause(log, recent)
            if cause is not None and cause.line not in reported:
                reported.add(cause.line)
                _say(sentence(cause))
            fresh = False


def line_json(line: "ServerLine") -> dict[str, str]:
    """Return a line in JSON types, with the time as RFC 3339 in UTC."""
    moment = line.moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"time": moment, "source": line.source, "where": line.where, "text": line.text}


def print_heading(options: LogsOptions, log: "ServerLog") -> None:
    """Print stack, project and time zone on stderr."""
    if not options.as_json:
        name = datetime.now(UTC).astimezone(UTC if options.utc else None).tzname()
        _say(f"stack {log.stack}, project {log.project}, times in {name}")


def print_lines(options: LogsOptions, lines: "Sequence[ServerLine]") -> None:
    """Print lines on stdout, with --json one object each."""
    for line in lines:
        if options.as_json:
            print_text(json.dumps(line_json(line)))
        else:
            moment = line.moment.astimezone(UTC if options.utc else None).strftime("%m-%d %H:%M:%S")
            print_text(f"{moment} {line.source:<6} {line.text}")


def _say(text: str) -> None:
    print_progress("logs", text)


COMMAND: Final = Command(name="logs", help=__doc__, options=LogsOptions, run=_logs, needs="state")


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
