"""Print the server logs of a stack.

Redacts secrets. Reads Cloud Logging, so logs are available while the server starts and after it was deleted. A TPU node writes its logs there
itself. Known causes of failures and their fixes are printed at the end. Log lines go to stdout, everything else to stderr.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Final

from contracts.exit_codes import ExitCode
from contracts.plain_text import for_terminal
from planning.units import parse_duration_s
from scripts.cli.command import Command, run_command, say
from scripts.cli.options import Option, StackName

if TYPE_CHECKING:
    from scripts.logs.place import ServerLog
    from scripts.logs.reading import PrintedLine
    from stacks.hooks.failure_hints import Cause

SCHEMA_VERSION: Final = 1
DEFAULT_LINES: Final = 200
DEFAULT_SINCE: Final = "1h"
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
    follow: Annotated[bool, Option("Print new lines until Ctrl-C.")] = False
    since_s: Annotated[
        int | None,
        Option(
            f"Print logs of the last DURATION. (default: {DEFAULT_SINCE})",
            flag="--since",
            metavar="DURATION",
            parse=_ago,
        ),
    ] = None
    lines: Annotated[int, Option("Maximum number of lines. Prints the newest.", least=1, most=10_000)] = DEFAULT_LINES
    utc: Annotated[bool, Option("Print times in UTC instead of this machine's time zone.")] = False
    as_json: Annotated[bool, Option("Print one JSON object on stdout; with --follow, one per line.", flag="--json")] = (
        False
    )


def _logs(options: LogsOptions) -> ExitCode:
    from cloud import google_api
    from contracts.errors import ScriptError
    from contracts.masking import LineMask
    from engine import state as states
    from scripts.logs.causes import newest_cause, sentence
    from scripts.logs.place import server_log
    from scripts.logs.reading import follow, newest

    state = states.read(options.stack)
    log = server_log(state)
    secrets, api = _secrets(log), google_api.connect(log.project)
    seconds = options.since_s if options.since_s is not None else parse_duration_s(DEFAULT_SINCE)
    since = datetime.now(UTC) - timedelta(seconds=seconds)
    show = Printer(log=log, zone=UTC if options.utc else None, as_json=options.as_json, follows=options.follow)
    try:
        found = newest(api, log, since, options.lines, LineMask(secrets))
    except ScriptError:
        states.require_deployed(state)
        raise
    if not found:
        states.require_deployed(state)
    if not options.follow:
        cause = newest_cause(log, found)
        show.whole(found, cause)
        _print_hint(options, found)
        if cause is not None:
            _say(sentence(cause))
        return ExitCode.DONE
    show.heading()
    recent = list(found)
    show.lines(found)
    reported: set[str] = set()
    printed = {(line.moment, line.text) for line in found}
    # Lines before the first printed one were skipped on purpose, but a line after it may become visible late.
    start = found[0].moment if len(found) == options.lines else since
    fresh = True
    for line in follow(api, log, start, LineMask(secrets), say=_say):
        if line is not None:
            if (line.moment, line.text) in printed:
                continue
            show.lines([line])
            recent, fresh = [*recent[-_KEPT:], line], True
        elif fresh:
            cause = newest_cause(log, recent)
            if cause is not None and cause.line not in reported:
                reported.add(cause.line)
                _say(sentence(cause))
            fresh = False
    raise AssertionError("unreachable, because only Ctrl-C stops --follow")


def _secrets(log: "ServerLog") -> tuple[str, ...]:
    """Return the stack's known secrets, so that lines can be masked."""
    from cloud.secret_values import read_secret
    from contracts.errors import ScriptError

    secrets: list[str] = []
    if log.api_key_secret:
        try:
            secrets.append(read_secret(log.api_key_secret, project=log.project))
        except ScriptError:
            _say("cannot read the stack's API key, so lines that contain it are not masked")
    return tuple(secrets)


def _print_hint(options: LogsOptions, found: "Sequence[PrintedLine]") -> None:
    if found:
        if len(found) == options.lines:
            _say(f"showing the newest {options.lines} lines. Pass --lines N for more.")
        return
    _say(f"no logs of stack {options.stack} in this period. Pass --since 1d to search a longer one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Printer:
    """Prints lines on stdout, as text or JSON."""

    log: "ServerLog"
    zone: tzinfo | None
    """Time zone of the times; None: local time."""
    as_json: bool
    follows: bool

    def heading(self) -> None:
        """Print stack, project and time zone."""
        if not self.as_json:
            name = datetime.now(UTC).astimezone(self.zone).tzname()
            _say(f"stack {self.log.stack}, project {self.log.project}, times in {name}")

    def whole(self, found: "Sequence[PrintedLine]", cause: "Cause | None") -> None:
        """Print all lines."""
        self.heading()
        if self.as_json:
            known = None if cause is None else {"finding": cause.finding, "line": cause.line, "fix": cause.hint}
            place = {"stack": self.log.stack, "project": self.log.project, "target": self.log.target}
            lines = [line.to_json() for line in found]
            report = {"schema_version": SCHEMA_VERSION, **place, "lines": lines, "cause": known}
            print(json.dumps(report))
        else:
            self.lines(found)

    def lines(self, found: "Iterable[PrintedLine]") -> None:
        """Print lines."""
        for line in found:
            if self.as_json:
                print(json.dumps(line.to_json()), flush=True)
            else:
                moment = line.moment.astimezone(self.zone).strftime("%m-%d %H:%M:%S")
                print(f"{moment} {line.source:<6} {for_terminal(line.text)}", flush=self.follows)


def _say(text: str) -> None:
    say("logs", text)


COMMAND: Final = Command(name="logs", help=__doc__, options=LogsOptions, run=_logs)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
