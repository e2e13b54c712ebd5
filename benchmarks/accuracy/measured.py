"""What servers really reported, read from measured.toml, and what the planner computes for the same deployments."""

import datetime as dt
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from planning.catalog import spec_of
from planning.memory import memory_plan
from planning.model import ModelSpec
from planning.overheads import VM_IMAGE_PULL_S
from planning.subject import Subject, examine
from planning.types import Deployment

T = TypeVar("T")

FILE: Final = Path(__file__).with_name("measured.toml")

WEIGHTS: Final = 0.03
KV: Final = 0.05
STARTUP: Final = 0.20
DECODE: Final = 0.30
SATURATION: Final = 0.50

_LAST_ALLOCATION_GIB: Final = 2.625
"""The output head before it is tied, which report 003 could not allocate."""


class MeasurementError(ValueError):
    """measured.toml is wrong; the message is one sentence that names the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureKind:
    """One kind of figure: its name on the page, where the planner has it, and how close the planner must come."""

    name: str
    read: Callable[[Subject], float]
    tolerance: float
    unit: str = ""


KINDS: Final[Mapping[str, FigureKind]] = {
    "checkpoint": FigureKind(name="checkpoint", read=lambda s: s.memory.checkpoint_gib, tolerance=WEIGHTS, unit="GiB"),
    "weights": FigureKind(name="weights a device", read=lambda s: s.memory.weights_gib, tolerance=WEIGHTS, unit="GiB"),
    "host_load_peak": FigureKind(
        name="host memory while loading", read=lambda s: s.memory.load_peak_host_gib, tolerance=WEIGHTS, unit="GiB"
    ),
    "before_last_allocation": FigureKind(
        name="in use before the last allocation",
        read=lambda s: s.memory.load_peak_device_gib - _LAST_ALLOCATION_GIB,
        tolerance=WEIGHTS,
        unit="GiB",
    ),
    "kv": FigureKind(name="KV cache a device", read=lambda s: s.memory.kv_gib, tolerance=KV, unit="GiB"),
    "kv_tokens": FigureKind(name="KV tokens", read=lambda s: s.memory.kv_tokens, tolerance=KV),
    "kv_blocks": FigureKind(name="KV blocks", read=lambda s: s.memory.kv_blocks, tolerance=KV),
    "kv_request": FigureKind(
        name="KV of one request", read=lambda s: s.memory.kv_request_gib, tolerance=KV, unit="GiB"
    ),
    "load": FigureKind(name="loading", read=lambda s: s.startup.load_s, tolerance=STARTUP, unit="s"),
    "compile": FigureKind(name="compile and warm-up", read=lambda s: s.startup.compile_s, tolerance=STARTUP, unit="s"),
    "startup": FigureKind(name="start-up in all", read=lambda s: s.startup.total_s, tolerance=STARTUP, unit="s"),
    "restart": FigureKind(
        name="start-up, image pulled", read=lambda s: s.startup.total_s - VM_IMAGE_PULL_S, tolerance=STARTUP, unit="s"
    ),
    "decode": FigureKind(
        name="decoding, one request", read=lambda s: s.throughput.decode_tok_per_s, tolerance=DECODE, unit="tok/s"
    ),
    "decode_64": FigureKind(
        name="decoding, 64 requests",
        read=lambda s: s.throughput.saturated_tok_per_s,
        tolerance=SATURATION,
        unit="tok/s",
    ),
}
"""The figures that measured.toml may give, by their keys."""


class _Table(BaseModel):
    """A table of the file; unknown keys and other types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ReportSource(_Table):
    """Who reported a figure. `url` and `date` are there where they are known."""

    citation: str
    url: str = ""
    date: dt.date | None = None


class Contradiction(_Table):
    """A statement of a report that the planner does not follow."""

    report: str
    planner: str
    why: str


class _Architecture(_Table):
    """A model that is not in the catalog, as changes of one that is."""

    model: str
    quantization: str = "bf16"
    changes: Mapping[str, bool | int | str]

    @field_validator("changes")
    @classmethod
    def _names_fields(cls, changes: Mapping[str, object]) -> Mapping[str, object]:
        known = [field.name for field in fields(ModelSpec)]
        if unknown := sorted(set(changes) - set(known)):
            raise ValueError(f"{unknown[0]} is no field of a model; known are {', '.join(known)}")
        return changes

    def spec(self) -> ModelSpec:
        """Return the model's dimensions."""
        return replace(spec_of(self.model, self.quantization), **cast("dict[str, Any]", self.changes))


class _Logged(_Table):
    """A figure as it was logged."""

    logged: float
    divided_by: float = 1
    note: str = ""


class _CaseTable(_Table):
    title: str
    deployment: str
    source: str
    figures: Mapping[str, float | _Logged]
    usable_gib: float | None = None


class _OutcomeTable(_Table):
    title: str
    deployment: str
    runs: bool
    sources: tuple[str, ...] = Field(min_length=1)


class _File(_Table):
    sources: Mapping[str, ReportSource]
    deployments: Mapping[str, Deployment]
    architectures: Mapping[str, _Architecture]
    field_reports: tuple[_CaseTable, ...]
    boot_logs: tuple[_CaseTable, ...]
    outcomes: tuple[_OutcomeTable, ...]
    contradictions: tuple[Contradiction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: what was reported, and what it is compared with."""

    kind: FigureKind
    measured: float
    note: str = ""
    """How the figure follows from the log, where the log has no such number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A deployment and what was reported about it."""

    title: str
    deployment: Deployment
    figures: tuple[Figure, ...]
    source: ReportSource
    usable_gib: float | None = None
    """Memory of a device that the catalog does not have; everything else is that of `deployment.accelerator`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """A deployment that was seen to run, or to run out of memory."""

    title: str
    deployment: Deployment
    runs: bool
    sources: tuple[ReportSource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Everything that the file holds."""

    sources: Mapping[str, ReportSource]
    deployments: Mapping[str, Deployment]
    field_reports: tuple[Case, ...]
    boot_logs: tuple[Case, ...]
    outcomes: tuple[ObservedRun, ...]
    contradictions: tuple[Contradiction, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """All cases, in the order of the page."""
        return (*self.field_reports, *self.boot_logs)


@cache
def load() -> Measurements:
    """Return the measurements of the project. Raises MeasurementError."""
    return parse(FILE.read_text(encoding="utf-8"))


def parse(text: str) -> Measurements:
    """Return the measurements that a TOML text holds.

    Raises:
        MeasurementError: for the first mistake: an unknown key, a value of another type, or an id that nothing defines.
    """
    try:
        file = _File.model_validate_json(json.dumps(_resolved(tomllib.loads(text)), default=dt.date.isoformat))
    except tomllib.TOMLDecodeError as error:
        raise MeasurementError(f"{FILE.name} is not TOML: {error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MeasurementError(f"{FILE.name}: {where}: {first['msg']}.") from None
    deployments = {
        key: replace(found, model_spec=file.architectures[key].spec()) if key in file.architectures else found
        for key, found in file.deployments.items()
    }
    return Measurements(
        sources=file.sources,
        deployments=deployments,
        field_reports=tuple(_case(table, deployments, file.sources) for table in file.field_reports),
        boot_logs=tuple(_case(table, deployments, file.sources) for table in file.boot_logs),
        outcomes=tuple(
            ObservedRun(
                title=table.title,
                deployment=_defined(deployments, table.deployment, table.title),
                runs=table.runs,
                sources=tuple(_defined(file.sources, key, table.title) for key in table.sources),
            )
            for table in file.outcomes
        ),
        contradictions=file.contradictions,
    )


def subject_of(case: Case) -> Subject:
    """Return what the planner computes for the case."""
    subject = examine(case.deployment)
    if case.usable_gib is None:
        return subject
    accelerator = replace(subject.resolved.accelerator, usable_gib=case.usable_gib)
    resolved = replace(subject.resolved, accelerator=accelerator)
    return replace(subject, resolved=resolved, memory=memory_plan(resolved))


def _resolved(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the fields that a deployment takes from another, and the architectures in a table of their own."""
    deployments: dict[str, dict[str, Any]] = {}
    for key, table in document.get("deployments", {}).items():
        own = dict(table)
        like = own.pop("like", None)
        deployments[key] = own if like is None else _merged(_defined(deployments, like, key), own)
    architectures = {key: table["architecture"] for key, table in deployments.items() if "architecture" in table}
    plain = {key: {k: v for k, v in table.items() if k != "architecture"} for key, table in deployments.items()}
    return {**document, "deployments": plain, "architectures": architectures}


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with changes, also inside the tables that it holds."""
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merged(base[key], value) if isinstance(base.get(key), dict) else value
    return merged


def _case(table: _CaseTable, deployments: Mapping[str, Deployment], sources: Mapping[str, ReportSource]) -> Case:
    return Case(
        title=table.title,
        deployment=_defined(deployments, table.deployment, table.title),
        figures=tuple(_figure(_defined(KINDS, key, table.title), logged) for key, logged in table.figures.items()),
        source=_defined(sources, table.source, table.title),
        usable_gib=table.usable_gib,
    )


def _figure(kind: FigureKind, found: float | _Logged) -> Figure:
    logged = found if isinstance(found, _Logged) else _Logged(logged=found)
    return Figure(kind=kind, measured=logged.logged / logged.divided_by, note=logged.note)


def _defined(known: Mapping[str, T], key: str, where: str) -> T:
    """Return what an id stands for."""
    if key not in known:
        raise MeasurementError(f"{FILE.name}: {where}: {key} is not defined; known are {', '.join(known)}.")
    return known[key]
