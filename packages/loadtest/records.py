"""Records of requests, and the messages between the command and its workers: a length, then the pickled object."""

import pickle
import struct
from array import array
from dataclasses import dataclass
from typing import IO, Final

FRAME: Final = struct.Struct(">I")
"""Length of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request. Times are seconds from the start of the point, or None for a stage that was not reached."""

    index: int
    intended_s: float
    """Start of all latencies: the intended send time (open loop) or the send time (closed loop)."""
    sent_s: float
    end_s: float
    times_s: "array[float]"
    """Arrival times of the events of the choice, with or without output. The role has none."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    error: str | None
    """Kind of failure, or None for a complete response with usage."""
    error_detail: str = ""
    asked_tokens: int = 0
    """Output tokens that the server must generate; 0 if unknown."""
    silent: int = 0
    """Events at the start of `times_s` without output."""
    closing_s: float = 0.0
    """Arrival of the last event that is not plain text: the finish reason, usage or [DONE]. 0 if there was none."""

    @property
    def first_s(self) -> float:
        """Arrival of the first output, or of the first event if none has output."""
        return self.times_s[self.silent if self.silent < len(self.times_s) else 0]

    @property
    def ttft_s(self) -> float:
        """Seconds to the first output."""
        return self.first_s - self.intended_s

    @property
    def e2e_s(self) -> float:
        """Seconds to the last event of the choice."""
        return self.times_s[-1] - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first, by the server's token count; None for a single token."""
        if self.output_tokens <= 1:
            return None
        return (self.times_s[-1] - self.first_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """One worker's share of a point."""

    records: tuple[RequestRecord, ...]
    lags_s: "array[float]"
    """Lateness of the worker's event loop, sampled evenly over time."""
    cpu_s: float
    wall_s: float
    stale_retries: int
    """Requests sent again because the server had closed an idle connection. They count once."""
    shed: int
    """Open-loop requests that were not sent because --max-in-flight was reached."""
    gave_up: str | None
    """Reason that the worker stopped early."""
    simulated: bool
    sessions: int = 0
    """Sessions of several turns that started."""
    sessions_cut: int = 0
    """Sessions that ended early because the conversation reached max-model-len."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker message: its connections are open."""


@dataclass(frozen=True, slots=True)
class StartLoad:
    """Message to a worker: start at this reading of `now_s`."""

    start_s: float


@dataclass(frozen=True, slots=True)
class StopLoad:
    """Message to a worker: abort the requests in flight."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Worker message: its requests so far."""

    finished: int
    in_flight: int


def packed(message: object) -> bytes:
    """Return one message as bytes."""
    raw = pickle.dumps(message)
    return FRAME.pack(len(raw)) + raw


def unpacked(raw: bytes) -> object:
    """Return the message in the bytes after its length."""
    return pickle.loads(raw)  # noqa: S301 - only the command and its child processes write here


def read_message(stream: IO[bytes]) -> object:
    """Return the next message, or None at the end of the stream."""
    prefix = stream.read(FRAME.size)
    if len(prefix) < FRAME.size:
        return None
    (size,) = FRAME.unpack(prefix)
    raw = stream.read(size)
    return unpacked(raw) if len(raw) == size else None
