"""Measured behavior of servers: boots with outcomes and figures, and the planner's subject for each.

measured.toml has the founding sources and the constants. Each file in `boots/` has one later source in the same format.
"""

import datetime as dt
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from planning.cost.subject import Subject, examine
from planning.cost.subject import subject_of as planned_subject
from planning.data.overheads import VM_IMAGE_PULL_S
from planning.errors import PlanningError
from planning.machine.devices import parse_device
from planning.model.catalog import spec_of
from planning.model.spec import ModelSpec
from planning.question.types import Deployment

T = TypeVar("T")

FILE: Final = Path(__file__).with_name("measured.toml")
BOOTS: Final = FILE.with_name("boots")
"""One file for each later source."""

Outcome = Literal["runs", "dies", "files"]
"""`files`: nothing was started; the figures come from a file list."""
DiedAt = Literal["arguments", "loading", "memory", "programs"]
Evidence = Literal["unseen", "known"]
"""`unseen`: nothing in the planner was set from a row of the boot's sources. `known`: a constant, a band or a choice was."""

WEIGHTS: Final = 0.03
KV: Final = 0.05
STARTUP: Final = 0.20
DECODE: Final = 0.30
SATURATION: Final = 0.50

_VERSION: Final = re.compile(r"(?<![\w.])v?(\d+\.\d+(?:\.\d+)?(?:rc\d+)?(?:\.dev\d+)?)")

_LAST_ALLOCATION_GIB: Final = 2.625
"""The output head before it is tied, which report 003 could not allocate."""


class MeasurementError(ValueError):
    """A file of the corpus is invalid. The message is one sentence that names the file and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureKind:
    """One kind of figure: its name on the page, its source in the plan, and the planner's tolerance."""

    name: str
    read: Callable[[Subject], float]
    tolerance: float
    unit: str = ""


KINDS: Final[Mapping[str, FigureKind]] = {
    "checkpoint": FigureKind(name="checkpoint", read=lambda s: s.memory.checkpoint_gib, tolerance=WEIGHTS, unit="GiB"),
    "weights": FigureKind(
        name="weights per device", read=lambda s: s.memory.weights_gib, tolerance=WEIGHTS, unit="GiB"
    ),
    "host_load_peak": FigureKind(
        name="host memory while loading", read=lambda s: s.memory.load_peak_host_gib, tolerance=WEIGHTS, unit="GiB"
    ),
    "before_last_allocation": FigureKind(
        name="in use before the last allocation",
        read=lambda s: s.memory.load_peak_device_gib - _LAST_ALLOCATION_GIB,
        tolerance=WEIGHTS,
        unit="GiB",
    ),
    "kv": FigureKind(name="KV cache per device", read=lambda s: s.memory.kv_gib, tolerance=KV, unit="GiB"),
    "kv_tokens": FigureKind(name="KV tokens", read=lambda s: s.memory.kv_tokens, tolerance=KV),
    "kv_blocks": FigureKind(name="KV blocks", read=lambda s: s.memory.kv_blocks, tolerance=KV),
    "kv_tokens_per_gib": FigureKind(
        name="KV tokens per GiB", read=lambda s: s.memory.kv_tokens / s.memory.kv_gib, tolerance=KV
    ),
    "kv_concurrency": FigureKind(name="KV, longest requests", read=lambda s: s.memory.max_concurrency, tolerance=KV),
    "kv_request": FigureKind(
        name="KV of one request", read=lambda s: s.memory.kv_request_gib, tolerance=KV, unit="GiB"
    ),
    "load": FigureKind(name="loading", read=lambda s: s.startup.load_s, tolerance=STARTUP, unit="s"),
    "compile": FigureKind(name="compile and warm-up", read=lambda s: s.startup.compile_s, tolerance=STARTUP, unit="s"),
    "startup": FigureKind(name="start-up, total", read=lambda s: s.startup.total_s, tolerance=STARTUP, unit="s"),
    "restart": FigureKind(
        name="start-up, image pulled", read=lambda s: s.startup.total_s - VM_IMAGE_PULL_S, tolerance=STARTUP, unit="s"
    ),
    "warm_restart": FigureKind(
        name="restart, compile cache kept", read=lambda s: s.startup.restart_s, tolerance=STARTUP, unit="s"
    ),
    "decode": FigureKind(
        name="decoding, one request", read=lambda s: s.throughput.decode_tok_per_s, tolerance=DECODE, unit="tok/s"
    ),
    "decode_16": FigureKind(
        name="decoding, 16 requests",
        read=lambda s: s.throughput.saturated_tok_per_s,
        tolerance=SATURATION,
        unit="tok/s",
    ),
    "decode_64": FigureKind(
        name="decoding, 64 requests",
        read=lambda s: s.throughput.saturated_tok_per_s,
        tolerance=SATURATION,
        unit="tok/s",
    ),
}
"""Figures allowed in the corpus, by key."""


class _Table(BaseModel):
    """A table of the file. Unknown keys and wrong types are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ReportSource(_Table):
    """The reporter of a figure. `url` and `date` are set if known."""

    citation: str
    url: str = ""
    date: dt.date | None = None
    failures: tuple[str, ...] = ()
    """Ids of this source's boots that crashed. A test fails if one is missing."""
    unseen: bool = False
    """True if no constant, band or choice of the planner was set from a row of this source."""
    used: str = ""
    """What was set from its rows, besides the constants that name them. Replaces `unseen`."""
    first_points: Mapping[str, tuple[int, int]] = Field(default_factory=dict[str, tuple[int, int]])
    """Sweep points within their factor when the source was first read, and points in all, by figure (rate, ttft, tpot)."""

    @model_validator(mode="after")
    def _is_used_or_unseen(self) -> "ReportSource":
        if self.unseen and self.used:
            raise ValueError("`unseen` and `used` cannot be combined. Remove `unseen`")
        return self


class Contradiction(_Table):
    """A reported statement that the planner does not follow."""

    report: str
    planner: str
    why: str


class LeftOut(_Table):
    """A source that was read but is not in the corpus."""

    what: str
    why: str


class ReadConstant(_Table):
    """A constant of `planning/data/overheads.py` that was derived from runs."""

    name: str
    read_off: tuple[str, ...] = Field(min_length=1)
    """The figures it was derived from: "BOOT KIND"."""


class _Architecture(_Table):
    """A model that is not in the catalog, as changes to one that is."""

    model: str
    quantization: str = "bf16"
    changes: Mapping[str, bool | int | str]

    @field_validator("changes")
    @classmethod
    def _names_fields(cls, changes: Mapping[str, object]) -> Mapping[str, object]:
        known = [field.name for field in fields(ModelSpec)]
        if unknown := sorted(set(changes) - set(known)):
            raise ValueError(f"{unknown[0]} is not a field of a model; use one of {', '.join(known)}")
        return changes

    def spec(self) -> ModelSpec:
        """Return the model's dimensions."""
        return replace(spec_of(self.model, self.quantization), **cast("dict[str, Any]", self.changes))


class _Logged(_Table):
    """A figure as it was logged."""

    logged: float
    divided_by: float = 1
    note: str = ""
    beyond: str = ""
    first: float | None = None


class _BootTable(_Table):
    id: str
    title: str
    deployment: str
    sources: tuple[str, ...] = Field(min_length=1)
    outcome: Outcome
    at: DiedAt | None = None
    message: str = ""
    image: str = ""
    path: str = ""
    figures: Mapping[str, float | _Logged] = Field(default_factory=dict[str, float | _Logged])
    usable_gib: float | None = None
    padding_gap: int | None = None
    spare_gib: float | None = None
    patched: bool = False
    superseded: str = ""
    beyond: str = ""
    ambiguous: str = ""
    first_right: bool | None = None

    @model_validator(mode="after")
    def _says_how_it_died(self) -> "_BootTable":
        if (self.outcome == "dies") is (self.at is None or not self.message):
            raise ValueError(
                f"{self.id}: `at` and `message` are required for a crashed boot and not allowed for any other"
            )
        return self


class _File(_Table):
    sources: Mapping[str, ReportSource]
    deployments: Mapping[str, Deployment]
    architectures: Mapping[str, _Architecture]
    devices: Mapping[str, str]
    boots: tuple[_BootTable, ...]
    constants: tuple[ReadConstant, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: its reported value and what it is compared with."""

    key: str
    """The kind's key in `KINDS`."""
    kind: FigureKind
    measured: float
    note: str = ""
    """Derivation of the figure if the log does not contain it."""
    beyond: str = ""
    """Reason why the planner cannot predict this figure. It still counts on the page, but not for the stated bounds."""
    first: float | None = None
    """The planner's prediction when the figure was first read, before anything could be set from it; None if it was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """A deployment that was started, its outcome, and its reported figures."""

    id: str
    title: str
    deployment_id: str
    deployment: Deployment
    sources: tuple[ReportSource, ...]
    outcome: Outcome
    died_at: DiedAt | None
    message: str
    """The last error message of a server that crashed, as logged."""
    image: str
    path: str
    """Files of the source that have this boot; empty if its URL names them."""
    figures: tuple[Figure, ...]
    padding_gap: int | None
    """VLLM_TPU_BUCKET_PADDING_GAP of the server, if it differs from the stacks' value."""
    usable_gib: float | None
    """Memory of a device that is not in the catalog. All other figures are those of `deployment.accelerator`."""
    spare_gib: float | None
    """Measured free device memory during the run, if reported."""
    is_patched: bool
    superseded: str
    beyond: str
    """Reason why the planner cannot predict this failure or figure. It still counts on the page."""
    ambiguous: str
    first_right: bool | None
    """Whether the planner's verdict was correct when the boot was first read; None if it was not recorded."""

    @property
    def died(self) -> bool:
        """True if the server crashed before it was ready."""
        return self.outcome == "dies"

    @property
    def evidence(self) -> Evidence:
        """Class of the boot: unseen only if all of its sources are."""
        return "unseen" if all(source.unseen for source in self.sources) else "known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Contents of all files."""

    sources: Mapping[str, ReportSource]
    deployments: Mapping[str, Deployment]
    boots: tuple[Boot, ...]
    constants: tuple[ReadConstant, ...]
    left_out: tuple[LeftOut, ...]
    contradictions: tuple[Contradiction, ...]

    def boot(self, boot_id: str) -> Boot:
        """Return the boot with an id. Raises MeasurementError."""
        return _defined({boot.id: boot for boot in self.boots}, boot_id, "boots")


@cache
def load() -> Measurements:
    """Return the project's measurements. Raises MeasurementError."""
    return parse_named({path.name: path.read_text(encoding="utf-8") for path in corpus_files()})


def corpus_files() -> tuple[Path, ...]:
    """Return the files of the corpus, the founding file first."""
    return (FILE, *sorted(BOOTS.glob("*.toml")))


def parse(*texts: str) -> Measurements:
    """Return the measurements in TOML texts. In errors, the first is measured.toml. Raises MeasurementError."""
    return parse_named({FILE.name if not number else f"text {number}": text for number, text in enumerate(texts)})


def parse_named(texts: Mapping[str, str]) -> Measurements:
    """Return the measurements in TOML texts by file name. Later texts can reference ids of earlier ones.

    Raises:
        MeasurementError: for the first error: an unknown key, a wrong type, an undefined or repeated id, or a fitted row of an unseen source.
    """
    documents = {name: _toml(name, text) for name, text in texts.items()}
    document = _resolved(_together(documents))
    try:
        file = _File.model_validate_json(json.dumps(document, default=dt.date.isoformat))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MeasurementError(f"{_file_of(first['loc'], documents)}: {where}: {first['msg']}.") from None
    deployments = {key: _special(key, found, file) for key, found in file.deployments.items()}
    found = Measurements(
        sources=file.sources,
        deployments=deployments,
        boots=tuple(_boot(table, deployments, file.sources) for table in file.boots),
        constants=file.constants,
        left_out=file.left_out,
        contradictions=file.contradictions,
    )
    _check_failures(found)
    _check_fitted_rows(found)
    return found


def _toml(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MeasurementError(f"{name} is not TOML: {error}.") from None


def _file_of(location: Sequence[int | str], documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the file that has an invalid table, for an error's location in the whole document."""
    kind, key = (*location, None, None)[:2]
    before = 0
    for name, document in documents.items():
        tables = document.get(str(kind), {})
        if isinstance(tables, list) and isinstance(key, int):
            before += len(cast("list[object]", tables))
            if key < before:
                return name
        elif key in tables:
            return name
    return FILE.name


def _special(key: str, deployment: Deployment, file: _File) -> Deployment:
    """Return a deployment with its model or device outside the catalog, if it has one."""
    if key in file.architectures:
        deployment = replace(deployment, model_spec=file.architectures[key].spec())
    if key not in file.devices:
        return deployment
    try:
        return replace(deployment, device=parse_device(file.devices[key]))
    except PlanningError as error:
        raise MeasurementError(f"{FILE.name}: deployments.{key}.device: {error}") from None


def subject_of(boot: Boot) -> Subject:
    """Return the planner's subject for the boot."""
    # A published vulnerability does not decide whether a server starts.
    accepted = (*boot.deployment.accept_findings, "SEC11")
    subject = examine(replace(boot.deployment, accept_findings=accepted))
    if boot.usable_gib is None and boot.padding_gap is None:
        return subject
    resolved = subject.resolved
    if boot.usable_gib is not None:
        resolved = replace(resolved, accelerator=replace(resolved.accelerator, usable_gib=boot.usable_gib))
    if boot.padding_gap is not None:
        resolved = replace(resolved, padding_gap=boot.padding_gap)
    return planned_subject(resolved)


def read_off(constant: ReadConstant, measurements: Measurements) -> tuple[tuple[Boot, Figure], ...]:
    """Return the figures that a constant was derived from. Raises MeasurementError if one is missing from the file."""
    return tuple(_figure_of(entry, measurements) for entry in constant.read_off)


def _figure_of(entry: str, measurements: Measurements) -> tuple[Boot, Figure]:
    boot_id, _, key = entry.partition(" ")
    boot = measurements.boot(boot_id)
    return boot, _defined({figure.key: figure for figure in boot.figures}, key, entry)


def _check_fitted_rows(measurements: Measurements) -> None:
    """Raise MeasurementError if a constant was fitted to a row of a source that is marked unseen: such a row proves nothing."""
    keys = {id(source): key for key, source in measurements.sources.items()}
    for constant in measurements.constants:
        for entry in constant.read_off:
            boot = _defined({boot.id: boot for boot in measurements.boots}, entry.partition(" ")[0], constant.name)
            unseen = next((source for source in boot.sources if source.unseen), None)
            if unseen is not None:
                raise MeasurementError(
                    f"{FILE.name}: constants: {constant.name} was fitted to {entry}, but sources.{keys[id(unseen)]} is marked unseen. "
                    f"Remove its line `unseen = true`."
                )


def _check_failures(measurements: Measurements) -> None:
    """Raise MeasurementError unless each source lists exactly its crashed boots, and all ids are unique."""
    ids = [boot.id for boot in measurements.boots]
    if twice := next((boot_id for boot_id in ids if ids.count(boot_id) > 1), None):
        raise MeasurementError(f"{FILE.name}: boots: the id {twice} is used twice.")
    for key, source in measurements.sources.items():
        died = {boot.id for boot in measurements.boots if boot.died and source in boot.sources}
        if died != set(source.failures):
            wrong = ", ".join(sorted(died ^ set(source.failures)))
            raise MeasurementError(
                f"{FILE.name}: sources.{key}.failures must list exactly the source's crashed boots. Check {wrong}."
            )


def _together(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return several documents as one, with their tables merged and their lists concatenated. Raises MeasurementError for a repeated id."""
    whole: dict[str, Any] = {"sources": {}, "deployments": {}, "boots": []}
    for name, document in documents.items():
        for key, value in document.items():
            if isinstance(value, dict):
                own = cast("dict[str, object]", value)
                if twice := sorted(set(own) & set(whole.get(key, {}))):
                    raise MeasurementError(f"{name}: {key}.{twice[0]}: the id is used in another file. Choose another.")
                whole[key] = {**whole.get(key, {}), **own}
            elif isinstance(value, list):
                whole[key] = [*whole.get(key, []), *cast("list[object]", value)]
            else:
                whole[key] = value
    return whole


_OUTSIDE_CATALOG: Final = frozenset({"architecture", "device"})


def _resolved(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with inherited deployment fields resolved, and models and devices outside the catalog in separate tables."""
    deployments: dict[str, dict[str, Any]] = {}
    for key, table in document.get("deployments", {}).items():
        own = dict(table)
        like = own.pop("like", None)
        deployments[key] = own if like is None else _merged(_defined(deployments, like, key), own)
    plain = {
        key: {"accelerator": "", **{k: v for k, v in table.items() if k not in _OUTSIDE_CATALOG}}
        for key, table in deployments.items()
    }
    return {
        **document,
        "deployments": plain,
        "architectures": {key: table["architecture"] for key, table in deployments.items() if "architecture" in table},
        "devices": {key: table["device"] for key, table in deployments.items() if "device" in table},
    }


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with changes applied, including in nested tables."""
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merged(base[key], value) if isinstance(base.get(key), dict) else value
    return merged


def _boot(table: _BootTable, deployments: Mapping[str, Deployment], sources: Mapping[str, ReportSource]) -> Boot:
    return Boot(
        id=table.id,
        title=table.title,
        deployment_id=table.deployment,
        deployment=_of_its_release(_defined(deployments, table.deployment, table.id), table.image),
        sources=tuple(_defined(sources, key, table.id) for key in table.sources),
        outcome=table.outcome,
        died_at=table.at,
        message=table.message,
        image=table.image,
        path=table.path,
        figures=tuple(_figure(key, logged, table.id) for key, logged in table.figures.items()),
        padding_gap=table.padding_gap,
        usable_gib=table.usable_gib,
        spare_gib=table.spare_gib,
        is_patched=table.patched,
        superseded=table.superseded,
        beyond=table.beyond,
        ambiguous=table.ambiguous,
        first_right=table.first_right,
    )


def _of_its_release(deployment: Deployment, image: str) -> Deployment:
    """Return the deployment with the vLLM version in its image's name. Default: the version of this project's image."""
    version = _VERSION.search(image)
    return deployment if version is None else replace(deployment, image_version=version[1])


def _figure(key: str, found: float | _Logged, where: str) -> Figure:
    logged = found if isinstance(found, _Logged) else _Logged(logged=found)
    kind = _defined(KINDS, key, where)
    return Figure(
        key=key,
        kind=kind,
        measured=logged.logged / logged.divided_by,
        note=logged.note,
        beyond=logged.beyond,
        first=logged.first,
    )


def _defined(known: Mapping[str, T], key: str, where: str) -> T:
    """Return the object that an id refers to."""
    if key not in known:
        raise MeasurementError(f"{FILE.name}: {where}: {key} is not defined. Use one of {', '.join(known)}.")
    return known[key]
