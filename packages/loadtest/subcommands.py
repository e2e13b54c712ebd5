"""Run a sweep for a command line, write the reports, and print the outcome."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from loadtest.client.plain_text import print_text
from loadtest.endpoint import given_endpoint
from loadtest.errors import SweepError
from loadtest.load_options import CompareOptions, LoadTestOptions, ReportFolder
from loadtest.measure import points_text
from loadtest.planned import plan_match
from loadtest.progress import Reporter, say
from loadtest.reports.charts import charts_missing
from loadtest.reports.report import write_reports
from loadtest.settings import SweepSettings
from loadtest.steady import LISTS
from loadtest.store import read_results
from loadtest.sweep import SweepOutcome, run_sweep, seed_of
from loadtest.traffic.points import Sweep

DONE: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
INTERRUPTED: Final = 130
"""Exit codes, shared with programs that use this package."""
MOST_FINDINGS: Final = 4
"""Findings that a terminal shows. The report and --json have all."""
GATE_CODES: Final = {"better": DONE, "same": DONE, "worse": FAILED, "cannot tell": REFUSED}
"""Exit codes of `compare --gate` by its verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallingProgram:
    """Program whose command line requested the sweep, for its messages."""

    name: str
    words: Sequence[str]
    """Command line that starts this sweep again."""


OWN: Final = CallingProgram(
    name="loadtest",
    words=(*(("loadtest",) if Path(sys.argv[0]).name == "loadtest" else ("python", "-m", "loadtest")), *sys.argv[1:]),
)
"""This package's own command, by the name that the user called: the installed command, or the module."""


def measure(options: LoadTestOptions) -> int:
    """Measure the server at an address, write the reports, and return the exit code. Raises SweepError if the sweep cannot start."""
    server = options.server
    if server.url is None:
        raise SweepError("--url is missing. Pass --url URL.")
    endpoint = given_endpoint(server.url)
    settings = sweep_settings(options, url=endpoint.base_url, model=server.model, usd_per_hour=server.usd_per_hour)
    outcome = run_sweep(settings, sweep_of(options, settings), endpoint, Reporter(OWN.name))
    files = conclude(settings, outcome, OWN)
    if options.report.as_json:
        print_text(json.dumps(as_json(settings, outcome, files)))
    return exit_code(outcome, allow_invalid=options.report.allow_invalid)


def compare(options: CompareOptions) -> int:
    """Compare two sweeps point by point, as Markdown for a pull request.

    Exit code 1 if a metric got worse beyond the threshold, or if nothing was compared. With --gate: 0 better or same, 1 worse, 2 inconclusive.
    """
    from loadtest.compare import compare_folders, comparison_json  # noqa: PLC0415 - only for two sweeps
    from loadtest.reports.report_pages import page  # noqa: PLC0415 - the same

    comparison = compare_folders(options.before, options.after, threshold=options.threshold)
    as_json = options.as_json
    print_text(json.dumps(comparison_json(comparison)) if as_json else page("comparison.md.j2", comparison=comparison))
    if options.gate:
        return GATE_CODES[comparison.verdict]
    return FAILED if comparison.worse or comparison.compared_nothing else DONE


def report(options: ReportFolder) -> int:
    """Regenerate the report, the charts and summary.csv of a folder from its results.jsonl."""
    files = [str(path) for path in write_reports(options.folder)]
    if missing := charts_missing():
        say(OWN.name, missing)
    print_text(json.dumps({"schema_version": 1, "files": files}) if options.as_json else "\n".join(files))
    return DONE


def sweep_of(asked: LoadTestOptions, settings: SweepSettings) -> Sweep:
    """Return the loads for the options. Raises SweepError if they conflict."""
    return asked.load.sweep(seed_of(settings, asked.load.seed), asked.traffic.traffic())


def sweep_settings(
    asked: LoadTestOptions, *, url: str, model: str | None, usd_per_hour: float | None, stack: str | None = None
) -> SweepSettings:
    """Return the measurement settings for the options. Raises SweepError without a folder for the results."""
    load = asked.load
    limits = asked.limits
    results = asked.report
    if results.out is None:
        raise SweepError("--out is missing. Pass --out DIR, the folder for results and report.")
    return SweepSettings(
        url=url,
        model=model,
        stack=stack,
        usd_per_hour=usd_per_hour,
        out=results.out,
        resume=results.resume,
        objective=results.slo,
        chat=not load.completions,
        poisson=not load.even_arrivals,
        warm_up=load.warm_up,
        stop_when_saturated=load.stop_when_saturated,
        extra_body=load.extra_body or {},
        workers=limits.workers,
        max_in_flight=limits.max_in_flight,
        max_failed=limits.max_failed,
        request_timeout_s=limits.request_timeout,
        stall_timeout_s=limits.stall_timeout,
        point_timeout_s=limits.point_timeout,
    )


def conclude(settings: SweepSettings, outcome: SweepOutcome, program: CallingProgram) -> Sequence[Path]:
    """Write the reports and return their paths.

    Print on stderr the plan beside the measurement, the findings, how the sweep ended and how to continue it.
    """
    files = write_reports(settings.out) if outcome.stored else ()
    match = plan_match(read_results(settings.out)) if files else None
    lines = [] if match is None else [match.text]
    lines += _problems(settings, outcome)
    command = ""
    if outcome.ending != "done":
        kept = f"{outcome.stored} of {points_text(outcome.planned)} are complete in {settings.out}"
        lines.append(f"{outcome.detail}; {kept}. Continue with:")
        command = _continuation(settings, program)
    elif files:
        lines.append(f"{points_text(outcome.stored)} in {settings.out}, report: {settings.out / 'report.html'}")
        lines += [missing] if (missing := charts_missing()) else []
    for number, line in enumerate(lines, start=1):
        say(program.name, line, command if number == len(lines) else "")
    return files


def exit_code(outcome: SweepOutcome, *, allow_invalid: bool = False) -> int:
    """Return the exit code of a program that ran a sweep. A requested point that is not valid is a failure."""
    if outcome.ending == "interrupted":
        return INTERRUPTED
    if outcome.ending == "unreachable":
        return REFUSED
    if outcome.ending != "done" or outcome.empty or outcome.failing:
        return FAILED
    return FAILED if sweep_findings(outcome) and not allow_invalid else DONE


def sweep_findings(outcome: SweepOutcome) -> list[str]:
    """Return why a sweep has fewer valid points than requested, one sentence per point and reason; empty if it has all.

    Points that were left out on purpose, above saturation or the KV cache, are not requested.
    """
    if outcome.ending != "done":
        return []
    none = outcome.invalid == outcome.stored
    first = [f"None of {points_text(outcome.stored)} is valid."] if none else []
    return [*first, *(f"{point}: {reason}." for point, reason in outcome.invalid_points)]


def _problems(settings: SweepSettings, outcome: SweepOutcome) -> list[str]:
    """Return the lines about points without valid metrics."""
    of_all = f"of {points_text(outcome.stored)}"
    lines: list[str] = []
    if outcome.failing:
        lines.append(
            f"{outcome.failing} {of_all} FAILED: more than {settings.max_failed:.3g} of their requests failed (--max-failed). See the report."
        )
    if outcome.simulated is not None:
        lines.append("the server is SIMULATED. Results do not reflect real hardware.")
    if outcome.invalid:
        lines.append(f"INVALID: {outcome.invalid} {of_all}. Do not use their metrics. See the report.")
    findings = sweep_findings(outcome)
    lines += [f"finding: {finding}" for finding in findings[:MOST_FINDINGS]]
    if len(findings) > MOST_FINDINGS:
        lines.append(f"more findings in the report: {len(findings) - MOST_FINDINGS}")
    if outcome.empty:
        lines.append(f"{outcome.empty} {of_all} have no complete response. --resume measures them again.")
    return lines


def _continuation(settings: SweepSettings, program: CallingProgram) -> str:
    words = [word for word in program.words if word != "--resume"]
    has_folder = any(word.partition("=")[0] == "--out" for word in words)
    return shlex.join([*words, *([] if has_folder else ["--out", str(settings.out)]), "--resume"])


def as_json(settings: SweepSettings, outcome: SweepOutcome, files: Sequence[Path]) -> dict[str, object]:
    """Return the `--json` output of a sweep."""
    results = read_results(settings.out) if outcome.stored else []
    match = plan_match(results)
    return {
        "schema_version": 1,
        "plan": None if match is None else asdict(match),
        "ending": outcome.ending,
        "out": str(settings.out),
        "simulated": outcome.simulated,
        "planned": outcome.planned,
        "stored": outcome.stored,
        "invalid": outcome.invalid,
        "failing": outcome.failing,
        "empty": outcome.empty,
        "findings": sweep_findings(outcome),
        "left_out": [dict(row) for row in outcome.left_out],
        "files": [str(file) for file in files],
        "points": [{key: value for key, value in row.items() if key not in LISTS} for row in results],
    }
