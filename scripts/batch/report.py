"""Summary of a batch run: text for a user, JSON for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from contracts.exit_codes import ExitCode
from planning.units import HOUR_S, duration

Stopped = Literal["limit", "max-cost", "interrupted", "failed"]
_SCHEMA: Final = 1
_SHOWN: Final = 5
_SHORT_S: Final = 10.0
_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """A request of this run without a completion: declined by the server, or without a response."""

    custom_id: str
    line: int
    reason: str


@dataclass(slots=True, kw_only=True)
class BatchReport:
    """Counts of a run, updated while it runs. `elapsed_s`: since the server was ready."""

    input: Path
    output: Path
    requests: int
    stored_before: int
    """Responses of earlier runs."""
    refused_before: int
    """Those whose status is not 200."""
    usd_per_hour: float | None
    simulated: str | None = None
    completed: int = 0
    """Completions of this run."""
    refused: list[FailedRequest] = field(default_factory=list[FailedRequest])
    """Requests that the server rejected (4xx). Their responses are stored too."""
    unanswered: list[FailedRequest] = field(default_factory=list[FailedRequest])
    """Requests without a stored response. The next run sends them again."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    without_usage: int = 0
    """Completions without token counts."""
    elapsed_s: float = 0.0
    stopped: Stopped | None = None
    """Why the run ended before all requests were sent."""

    @property
    def stored(self) -> int:
        """Responses in the file."""
        return self.stored_before + self.completed + len(self.refused)

    @property
    def left(self) -> int:
        """Requests that have no response."""
        return self.requests - self.stored

    @property
    def usd(self) -> float | None:
        """Cost of the server for the time of this run; None without a price."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.elapsed_s / HOUR_S

    @property
    def output_tok_per_s(self) -> float | None:
        """Output rate, all requests together; None before the first completion."""
        return self.completion_tokens / self.elapsed_s if self.completion_tokens and self.elapsed_s > 0 else None

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """Cost per million output tokens of this run; None without a price or without tokens."""
        usd = self.usd
        return None if usd is None or not self.completion_tokens else usd / self.completion_tokens * _MILLION

    @property
    def exit_code(self) -> ExitCode:
        """DONE if each request has a completion, or if the run ended at --limit without a failure."""
        if self.stopped == "interrupted":
            return ExitCode.INTERRUPTED
        has_failures = bool(self.refused or self.refused_before or self.unanswered)
        return ExitCode.FAILED if has_failures or self.stopped not in {None, "limit"} else ExitCode.DONE


def json_of(report: BatchReport) -> Mapping[str, object]:
    """Return the JSON object of `--json`."""
    return {"schema_version": _SCHEMA} | asdict(report) | {
        "input": str(report.input),
        "output": str(report.output),
        "stored": report.stored,
        "left": report.left,
        "output_tok_per_s": report.output_tok_per_s,
        "usd": report.usd,
        "usd_per_million_output_tokens": report.usd_per_million_output_tokens,
    }  # fmt: skip


def rows(report: BatchReport) -> Sequence[tuple[str, str]]:
    """Return the summary as facts, each with its name; an empty name continues the fact above."""
    before = f", {report.stored_before:,} of them by earlier runs" if report.stored_before else ""
    found = [
        ("input", f"{report.requests:,} requests in {report.input}"),
        ("output", f"{report.stored:,} responses in {report.output}{before}"),
    ]
    rejected = report.refused_before + len(report.refused)
    if rejected:
        are = "response is an error" if rejected == 1 else "responses are errors"
        found.append(("rejected", f"{rejected:,} {are}"))
    found += _failures(report.refused)
    if report.unanswered:
        found.append(("unanswered", f"{_requests(len(report.unanswered))} of this run got no response"))
    found += _failures(report.unanswered)
    if report.completed:
        found += [("speed", _speed(report)), ("tokens", _tokens(report))]
    if report.usd is not None and report.elapsed_s:
        found.append(("cost", _cost(report, report.usd)))
    if report.simulated is not None:
        found.append(("note", "The server is simulated: no model responded."))
    if report.left:
        found.append(("next", f"{_requests(report.left)} left. Run the same command again."))
    return found


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _failures(found: Sequence[FailedRequest]) -> list[tuple[str, str]]:
    shown = [("", f"line {one.line}, {one.custom_id}: {one.reason}") for one in found[:_SHOWN]]
    return shown + ([("", f"and {len(found) - _SHOWN:,} more")] if len(found) > _SHOWN else [])


def _speed(report: BatchReport) -> str:
    rate = report.output_tok_per_s
    per_minute = report.completed * 60 / report.elapsed_s if report.elapsed_s else 0.0
    tokens = "" if rate is None else f", {rate:,.1f} output tokens/s"
    return f"{report.completed:,} in {_time(report)}, {per_minute:,.1f} per minute{tokens}"


def _tokens(report: BatchReport) -> str:
    missing = f", {report.without_usage:,} completions without counts" if report.without_usage else ""
    return f"{report.prompt_tokens:,} in, {report.completion_tokens:,} out{missing}"


def _cost(report: BatchReport, usd: float) -> str:
    per_million = report.usd_per_million_output_tokens
    each = "" if per_million is None else f"; ${per_million:,.2f} per million output tokens"
    return f"${usd:,.{2 if usd >= 1 else 4}f}: {_time(report)} at ${report.usd_per_hour:,.2f} per hour{each}"


def _time(report: BatchReport) -> str:
    return f"{report.elapsed_s:.1f} s" if report.elapsed_s < _SHORT_S else duration(report.elapsed_s)
