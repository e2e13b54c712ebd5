"""What the judge answers: events of the child process, one JSON object per line, and the answer that they add up to.

Every value is of one device. GiB and MiB are 2^30 and 2^20 bytes.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

Amount = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Part = TypeVar("Part")
StageName = Literal["import", "devices", "config", "runner", "weights", "kv-cache", "programs"]


class NotUnderstoodError(ValueError):
    """The child process printed something that this version does not know."""


class _Event(Struct, frozen=True, kw_only=True, tag_field="event", forbid_unknown_fields=True):
    """A line of the child process. An unknown or a missing field is an error."""


class Stage(_Event, frozen=True, kw_only=True, tag="stage"):
    """A stage of the start begins."""

    name: StageName
    seconds: Amount


class Replicated(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor of which each device has a whole copy."""

    name: str
    mib: Amount


class Built(_Event, frozen=True, kw_only=True, tag="built"):
    """The server as vLLM built it, before its programs."""

    architecture: str
    path: Literal["jax", "torch"]
    weights_gib: Amount
    kv_gib: Amount
    kv_blocks: Count
    block_size: Count
    kv_dtype: str
    sequences: Count
    """Maximum concurrent sequences."""
    mesh: dict[str, int]
    token_paddings: tuple[int, ...]
    request_paddings: tuple[int, ...]
    replicated: tuple[Replicated, ...]
    versions: dict[str, str]
    platform_version: str


class Total(_Event, frozen=True, kw_only=True, tag="programs"):
    """How many programs are compiled, and how many the server has."""

    total: Count
    all: Count
    held_gib: Amount
    """Most memory of a device that the start keeps for inputs of programs, until it has run each program of a kind once."""


_QUANTIZATION: Final = "quantization"
_NAMES: Final = {"backbone": "step", "sample": "sampler"}
"""Words for tpu-inference's names of programs."""


class Program(_Event, frozen=True, kw_only=True, tag="program"):
    """A compiled program. Its figures are None only with an error."""

    name: str
    tokens: Count | None
    sequences: Count | None
    arguments_gib: Amount | None
    temporaries_gib: Amount | None
    outputs_gib: Amount | None
    aliased_gib: Amount | None
    code_mib: Amount | None
    flops: Amount | None
    seconds: Amount
    error: str

    def __post_init__(self) -> None:
        """Require the figures of a program that compiled."""
        figures = (self.arguments_gib, self.temporaries_gib, self.outputs_gib, self.aliased_gib, self.code_mib)
        if not self.error and None in figures:
            raise ValueError(f"program {self.name} has neither all figures nor an error")

    @property
    def working_gib(self) -> float:
        """Memory while it runs, in addition to its inputs: temporaries, and outputs that do not take an input's place."""
        return (self.temporaries_gib or 0) + (self.outputs_gib or 0) - (self.aliased_gib or 0)

    @property
    def title(self) -> str:
        """Name with its size, such as `step (4,096 tokens)`."""
        sizes = ((self.tokens, "tokens"), (self.sequences, "sequences"))
        size = ", ".join(f"{number:,} {unit}" for number, unit in sizes if number is not None)
        name = _NAMES.get(self.name, self.name)
        return f"{name} ({size})" if size else name


class RefusedServer(_Event, frozen=True, kw_only=True, tag="refused"):
    """vLLM's code or the compiler refuses the server."""

    stage: StageName | Literal["program"]
    program: str
    words: str
    """Its own words."""


class FailedJudge(_Event, frozen=True, kw_only=True, tag="failed"):
    """The judge itself failed, which says nothing about the server."""

    stage: str
    words: str


class Done(_Event, frozen=True, kw_only=True, tag="done"):
    """The end of the work."""

    seconds: Amount
    cpu_s: Amount
    peak_memory_gib: Amount


Event = Stage | Built | Total | Program | RefusedServer | FailedJudge | Done
_EVENT: Final = msgspec.json.Decoder(Event)
_ENCODER: Final = msgspec.json.Encoder()


def read_event(line: bytes | str) -> Event:
    """Return the event of a line. Raises NotUnderstoodError."""
    try:
        return _EVENT.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        shown = line if isinstance(line, str) else line.decode(errors="replace")
        raise NotUnderstoodError(f"the judge's answer is not understood: {error}: {shown[:200]!r}") from None


def event_line(event: Event) -> str:
    """Return the line of an event."""
    return _ENCODER.encode(event).decode()


class CompileAnswer(Struct, frozen=True, kw_only=True):
    """The judge's answer. `reason` says why there is none; it is never empty for an answer that is incomplete."""

    built: Built | None = None
    programs: tuple[Program, ...] = ()
    all_programs: int = 0
    """Programs that the server compiles at its start."""
    refusal: RefusedServer | None = None
    done: Done | None = None
    reason: str = ""

    @property
    def working_gib(self) -> float:
        """Temporaries and new outputs of the program that needs most beside the KV cache: weights are quantized before there is one."""
        return max((program.working_gib for program in self.programs if program.name != _QUANTIZATION), default=0)

    @property
    def code_gib(self) -> float:
        """Code of the compiled programs together."""
        return sum(program.code_mib or 0 for program in self.programs) / 1024


def answer_of(events: Sequence[Event], reason: str = "") -> CompileAnswer:
    """Return the answer of all events. `reason`: why the process ended before its answer, if it did."""
    built, total = _last(events, Built), _last(events, Total)
    refusal, done = _last(events, RefusedServer), _last(events, Done)
    programs = tuple(event for event in events if isinstance(event, Program))
    if refusal is None:
        reason = reason or _lacking(built, total, programs, done)
    return CompileAnswer(
        built=built,
        programs=programs,
        all_programs=total.all if total else 0,
        refusal=refusal,
        done=done,
        reason="" if refusal is not None else reason,
    )


def _lacking(built: Built | None, total: Total | None, programs: tuple[Program, ...], done: Done | None) -> str:
    """Return what an answer without a refusal lacks; empty if it is complete."""
    if done is None:
        return "the judge ended without an answer"
    if built is None:
        return "the judge's answer is not understood: it has no built server"
    if total is not None and total.total != len(programs):
        return f"the judge's answer is not understood: {len(programs)} of {total.total} programs"
    failed = next((program for program in programs if program.error), None)
    return f"{failed.title} was not compiled: {failed.error}" if failed else ""


def _last(events: Sequence[Event], kind: type[Part]) -> Part | None:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)
