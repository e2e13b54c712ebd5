"""Replay of requests with timestamps.

A row of the file is a JSON object with `timestamp` in s, and `input_tokens` and `output_tokens`, or `prompt` or `messages` and
`output_tokens`.
"""

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.errors import SweepError
from loadtest.traffic.dataset import DatasetRow, parse_row
from loadtest.traffic.rows import Places, as_object, spans


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request of a trace. Either `content` or `input_tokens` defines the prompt."""

    at_s: float
    input_tokens: int | None
    output_tokens: int
    content: DatasetRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace, ready for replay. Sent to the processes of the load generator."""

    places: Places
    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    """Intended send times from the start of the point, with the time scale applied."""
    max_model_len: int | None


@dataclass(slots=True, kw_only=True)
class TraceFacts:
    """Result of a trace scan."""

    input_tokens: float = 0.0
    output_tokens: float = 0.0
    clamped: int = 0
    duration_s: float = 0.0
    with_text: int = 0


def _whole_number(row: dict[str, Any], name: str) -> int:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"has {name} {value!r}, but it must be a whole number of 0 or more")
    return value


def _timestamp(row: dict[str, Any]) -> float:
    value = row.get("timestamp")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"has timestamp {value!r}, but it must be a number of seconds")


def parse_trace_row(raw: bytes) -> TraceRow:
    """Read one row. Times are as in the file. Raises ValueError with the problem."""
    row = as_object(raw)
    at_s, output_tokens = _timestamp(row), max(1, _whole_number(row, "output_tokens"))
    if "prompt" in row or "messages" in row:
        return TraceRow(at_s=at_s, input_tokens=None, output_tokens=output_tokens, content=parse_row(raw))
    return TraceRow(at_s=at_s, input_tokens=max(1, _whole_number(row, "input_tokens")), output_tokens=output_tokens)


def scan_trace(
    path: Path, *, time_scale: float, requests: int | None, duration_s: float | None, max_model_len: int | None
) -> tuple[Trace, TraceFacts]:
    """Check the rows of a trace and record when each is sent: at its time after the first row, divided by `time_scale`.

    Reading stops after `requests` rows and at the first row after `duration_s`. Raises SweepError if a row is invalid
    or earlier than the previous row, or if there is none.
    """
    trace, facts = Trace(places=Places(path=path), max_model_len=max_model_len), TraceFacts()
    begin_s = 0.0
    for number, (start, raw) in enumerate(spans(path), start=1):
        try:
            row = parse_trace_row(raw)
        except ValueError as error:
            raise SweepError(
                f"--trace {path}: row {number} {error}. A row has timestamp, output_tokens, and input_tokens, prompt or messages."
            ) from None
        begin_s = row.at_s if number == 1 else begin_s
        at_s = (row.at_s - begin_s) / time_scale
        if trace.times_s and at_s < trace.times_s[-1]:
            raise SweepError(f"--trace {path}: row {number} is earlier than the previous row. Sort the file by time.")
        if (requests is not None and number > requests) or (duration_s is not None and at_s >= duration_s):
            break
        trace.places.add(start, len(raw))
        trace.times_s.append(at_s)
        _learn(facts, row, max_model_len)
    count = len(trace.places)
    if not count:
        raise SweepError(f"--trace {path} contains no request.")
    facts.input_tokens /= max(1, count - facts.with_text)
    facts.output_tokens /= count
    facts.duration_s = trace.times_s[-1]
    return trace, facts


def _learn(facts: TraceFacts, row: TraceRow, max_model_len: int | None) -> None:
    facts.with_text += row.content is not None
    tokens_in, tokens_out = clamped(row, max_model_len)
    facts.clamped += tokens_in != row.input_tokens or tokens_out != row.output_tokens
    facts.input_tokens += tokens_in or 0
    facts.output_tokens += tokens_out


def clamped(row: TraceRow, max_model_len: int | None) -> tuple[int | None, int]:
    """Return the tokens to send and to generate. A request over max-model-len loses input first, then output."""
    if max_model_len is None or row.input_tokens is None:
        return row.input_tokens, row.output_tokens
    output = min(row.output_tokens, max_model_len - 1)
    return min(row.input_tokens, max_model_len - output), output
