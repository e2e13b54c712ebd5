"""Records of requests, and their message format: a JSON head, then the raw event times."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Final, cast

FRAME: Final = struct.Struct(">II")
"""Lengths of a message's JSON and of its raw bytes."""
FRAME_LIMIT: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request. Times are seconds from the start of the point; None if the request did not get that far."""

    index: int
    intended_s: float
    """Start of all latencies: the intended send time (open loop) or the send time (closed loop)."""
    sent_s: float
    connect_s: float
    """Seconds to open a connection; 0 if one was open."""
    end_s: float
    times_s: array[float]
    """Arrival times of the events with output."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    error: str | None
    """Kind of failure; None for a complete answer with usage."""
    error_detail: str = ""

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.times_s[0] - self.intended_s

    @property
    def e2e_s(self) -> float:
        """Seconds to the last output."""
        return self.times_s[-1] - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first, by the server's token count; None for a single token."""
        if self.output_tokens <= 1:
            return None
        return (self.times_s[-1] - self.times_s[0]) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """One worker's share of a point."""

    records: tuple[RequestRecord, ...]
    lags_s: array[float]
    """Lateness of the worker's event loop, sampled evenly over time."""
    cpu_s: float
    wall_s: float
    stale_retries: int
    """Requests sent again because the server had closed an idle connection. They count once."""
    shed: int
    """Requests of an open loop that were not sent because --max-in-flight was reached."""
    gave_up: str | None
    """Why the worker stopped early."""
    simulated: bool


def write_frame(stream: IO[bytes], head: Mapping[str, Any], blob: bytes = b"") -> None:
    """Write one message and flush."""
    raw = json.dumps(head, separators=(",", ":")).encode()
    stream.write(FRAME.pack(len(raw), len(blob)) + raw + blob)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Return the next message, or None at the end of the stream."""
    prefix = stream.read(FRAME.size)
    if len(prefix) < FRAME.size:
        return None
    head_size, blob_size = FRAME.unpack(prefix)
    if head_size > FRAME_LIMIT or blob_size > FRAME_LIMIT:
        raise ValueError("a worker's message is too long")
    raw, blob = stream.read(head_size), stream.read(blob_size)
    if len(raw) < head_size or len(blob) < blob_size:
        return None
    return cast("dict[str, Any]", json.loads(raw)), blob


def pack_result(result: WorkerResult) -> tuple[dict[str, Any], bytes]:
    """Return a result as a message."""
    rows = [
        [r.index, r.intended_s, r.sent_s, r.connect_s, r.end_s, r.prompt_tokens, r.output_tokens, r.cached_tokens, r.error, r.error_detail, len(r.times_s)]
        for r in result.records
    ]  # fmt: skip
    head = {
        "op": "result",
        "rows": rows,
        "lags": len(result.lags_s),
        "cpu_s": result.cpu_s,
        "wall_s": result.wall_s,
        "stale_retries": result.stale_retries,
        "shed": result.shed,
        "gave_up": result.gave_up,
        "simulated": result.simulated,
    }
    return head, b"".join([result.lags_s.tobytes(), *(r.times_s.tobytes() for r in result.records)])


def unpack_result(head: Mapping[str, Any], blob: bytes) -> WorkerResult:
    """Return the result in a message of `pack_result`."""
    times = array("d")
    times.frombytes(blob)
    position = int(head["lags"])
    lags, records = times[:position], list[RequestRecord]()
    for index, intended, sent, connect, end, prompt, output, cached, error, detail, events in head["rows"]:
        records.append(
            RequestRecord(
                index=index,
                intended_s=intended,
                sent_s=sent,
                connect_s=connect,
                end_s=end,
                times_s=times[position : position + events],
                prompt_tokens=prompt,
                output_tokens=output,
                cached_tokens=cached,
                error=error,
                error_detail=detail,
            )
        )
        position += events
    return WorkerResult(
        records=tuple(records),
        lags_s=lags,
        cpu_s=head["cpu_s"],
        wall_s=head["wall_s"],
        stale_retries=head["stale_retries"],
        shed=head["shed"],
        gave_up=head["gave_up"],
        simulated=head["simulated"],
    )
