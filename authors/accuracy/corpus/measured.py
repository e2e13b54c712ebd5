"""Measured behavior of servers: boots with outcomes and figures, and the planner's subject for each.

measured.toml has the founding sources and the constants; the comment at its top describes each key, as the classes below have them.
Each file in `boots/` has one later source in the same format.
"""

import datetime as dt
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import ConfigDict, PlainValidator, TypeAdapter, ValidationError, ValidationInfo

from planning.cost.subject import Subject, examine
from planning.cost.subject import subject_of as planned_subject
from planning.data.overheads import VM_IMAGE_PULL_S
from planning.errors import PlanningError
from planning.machine.devices import parse_device
from planning.model.catalog import spec_of
from planning.model.hf_config import model_from_config
from planning.question.types import Deployment

FILE: Final = Path(__file__).with_name("measured.toml")
BOOTS: Final = FILE.with_name("boots")
"""One file for each later source."""
CONFIGS: Final = FILE.with_name("configs.json")
"""Published config.json files of models outside the catalog, by the name that `config` of a deployment states."""

WEIGHTS: Final = 0.03
KV: Final = 0.05
STARTUP: Final = 0.25
DECODE: Final = 0.20
SATURATION: Final = 0.50

_VERSION: Final = re.compile(r"(?<![\w.])v?(\d+\.\d+(?:\.\d+)?(?:rc\d+)?(?:\.dev\d+)?)")

_LAST_ALLOCATION_GIB: Final = 2.625
"""The output head before it is tied, which report 003 could not allocate."""


class MeasurementError(ValueError):
    """A file of the corpus is invalid. The message is one sentence that names the file and the key."""


@dataclass(frozen=True, slots=True)
class FigureKind:
    """One kind of figure: its name on the page, its unit, the planner's tolerance, and its place in the plan."""

    name: str
    unit: str
    tolerance: float
    read: Callable[[Subject], float]


KINDS: Final[Mapping[str, FigureKind]] = {
    "checkpoint": FigureKind("checkpoint", "GiB", WEIGHTS, lambda s: s.memory.checkpoint_gib),
    "weights": FigureKind("weights per device", "GiB", WEIGHTS, lambda s: s.memory.weights_gib),
    "host_load_peak": FigureKind("host memory while loading", "GiB", WEIGHTS, lambda s: s.memory.load_peak_host_gib),
    "before_last_allocation": FigureKind(
        "in use before the last allocation",
        "GiB",
        WEIGHTS,
        lambda s: s.memory.load_peak_device_gib - _LAST_ALLOCATION_GIB,
    ),
    "kv": FigureKind("KV cache per device", "GiB", KV, lambda s: s.memory.kv_gib),
    "kv_tokens": FigureKind("KV tokens", "", KV, lambda s: s.memory.kv_tokens),
    "kv_blocks": FigureKind("KV blocks", "", KV, lambda s: s.memory.kv_blocks),
    "kv_tokens_per_gib": FigureKind("KV tokens per GiB", "", KV, lambda s: s.memory.kv_tokens / s.memory.kv_gib),
    "kv_concurrency": FigureKind("KV, longest requests", "", KV, lambda s: s.memory.max_concurrency),
    "kv_request": FigureKind("KV of one request", "GiB", KV, lambda s: s.memory.kv_request_gib),
    "load": FigureKind("loading", "s", STARTUP, lambda s: s.startup.load_s),
    "compile": FigureKind("compile and warm-up", "s", STARTUP, lambda s: s.startup.compile_s),
    "startup": FigureKind("start-up, total", "s", STARTUP, lambda s: s.startup.total_s),
    "restart": FigureKind("start-up, image pulled", "s", STARTUP, lambda s: s.startup.total_s - VM_IMAGE_PULL_S),
    "warm_restart": FigureKind("restart, compile cache kept", "s", STARTUP, lambda s: s.startup.restart_s),
    "decode": FigureKind("decoding, one request", "tok/s", DECODE, lambda s: s.throughput.decode_tok_per_s),
    "decode_16": FigureKind("decoding, 16 requests", "tok/s", SATURATION, lambda s: s.throughput.saturated_tok_per_s),
    "decode_64": FigureKind("decoding, 64 requests", "tok/s", SATURATION, lambda s: s.throughput.saturated_tok_per_s),
}
"""Figures allowed in the corpus, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSource:
    """The reporter of a figure. `url` and `date` are set if known."""

    citation: str
    url: str = ""
    date: dt.date | None = None
    failures: tuple[str, ...] = ()
    unseen: bool = False
    used: str = ""
    first_points: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def __post_init__(self) -> None:
        """Refuse a source that is both."""
        if self.unseen and self.used:
            raise ValueError("`unseen` and `used` cannot be combined. Remove `unseen`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConstant:
    """A constant of `planning/data/overheads.py`, and the figures that it was derived from: "BOOT KIND"."""

    name: str
    read_off: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure as it was logged."""

    key: str
    logged: float
    divided_by: float = 1
    note: str = ""
    beyond: str = ""
    first: float | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown kind."""
        if self.key not in KINDS:
            raise ValueError(f"{self.key} is not defined. Use one of {', '.join(KINDS)}")

    @property
    def kind(self) -> FigureKind:
        """What the figure is compared with."""
        return KINDS[self.key]

    @property
    def measured(self) -> float:
        """The reported value, for one device."""
        return self.logged / self.divided_by


def _named(kind: str) -> PlainValidator:
    """Validate an id of another table, in the order of the file, and return what it names."""

    def find(key: str, info: ValidationInfo) -> object:
        known = cast("dict[str, dict[str, object]]", info.context)[kind]
        if key not in known:
            raise ValueError(f"{key} is not defined. Use one of {', '.join(known)}")
        return known[key]

    return PlainValidator(find)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """A deployment that was started, its outcome, and its reported figures."""

    id: str
    title: str
    deployment_id: str
    deployment: Annotated[Deployment, _named("deployments")]
    sources: tuple[Annotated[ReportSource, _named("sources")], ...]
    outcome: Literal["runs", "dies", "files"]
    at: Literal["arguments", "loading", "memory", "programs"] | None = None
    message: str = ""
    image: str = ""
    path: str = ""
    figures: tuple[Figure, ...] = ()
    padding_gap: int | None = None
    usable_gib: float | None = None
    spare_gib: float | None = None
    patched: bool = False
    superseded: str = ""
    beyond: str = ""
    ambiguous: str = ""
    first_right: bool | None = None

    def __post_init__(self) -> None:
        """Refuse a crash without its stage and message, and both without a crash."""
        if self.died is (self.at is None or not self.message):
            raise ValueError(
                f"{self.id}: `at` and `message` are required for a crashed boot and not allowed for any other"
            )

    @property
    def died(self) -> bool:
        """True if the server crashed before it was ready."""
        return self.outcome == "dies"

    @property
    def evidence(self) -> Literal["unseen", "known"]:
        """Class of the boot: unseen only if all of its sources are, so that nothing in the planner was set from its rows."""
        return "unseen" if all(source.unseen for source in self.sources) else "known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Contents of all files."""

    sources: Mapping[str, ReportSource]
    deployments: Mapping[str, Deployment]
    boots: tuple[Boot, ...]
    constants: tuple[ReadConstant, ...]

    def boot(self, boot_id: str) -> Boot:
        """Return the boot with an id. Raises MeasurementError."""
        found = next((boot for boot in self.boots if boot.id == boot_id), None)
        if found is None:
            raise MeasurementError(f"{FILE.name}: boots: {boot_id} is not defined.")
        return found


_STRICT: Final = ConfigDict(extra="forbid", strict=True)
_TABLES: Final[Mapping[str, TypeAdapter[Any]]] = {
    "sources": TypeAdapter(dict[str, ReportSource], config=_STRICT),
    "deployments": TypeAdapter(dict[str, Deployment], config=_STRICT),
    "boots": TypeAdapter(list[Boot], config=_STRICT),
    "constants": TypeAdapter(list[ReadConstant], config=_STRICT),
}
"""Tables of a file. Unknown keys and wrong types are rejected."""


@cache
def load() -> Measurements:
    """Return the project's measurements. Raises MeasurementError."""
    return parse_named({path.name: path.read_text(encoding="utf-8") for path in corpus_files()})


def corpus_files() -> tuple[Path, ...]:
    """Return the files of the corpus, the founding file first."""
    return (FILE, *sorted(BOOTS.glob("*.toml")))


def parse_named(texts: Mapping[str, str]) -> Measurements:
    """Return the measurements in TOML texts by file name. Later texts can reference ids of earlier ones.

    Raises:
        MeasurementError: for the first error: an unknown key, a wrong type, an undefined or repeated id, a crash that its source does not
            list, or a fitted row of an unseen source.
    """
    named: dict[str, dict[str, Any]] = {"sources": {}, "deployments": {}}
    boots: list[Boot] = []
    constants: list[ReadConstant] = []
    raw: dict[str, dict[str, Any]] = {}
    for name, text in texts.items():
        document = _document(name, text)
        twice = sorted(key for kind, known in named.items() for key in document.get(kind, {}) if key in known)
        if twice:
            raise MeasurementError(f"{name}: the id {twice[0]} is used in another file. Choose another.")
        _inherit(document, raw, name)
        named["sources"] |= _read(name, "sources", document.get("sources", {}))
        named["deployments"] |= _deployments(name, document.get("deployments", {}))
        for boot in document.get("boots", ()):
            boot["deployment_id"] = boot["deployment"]
            figures = boot.get("figures", {}).items()
            boot["figures"] = [{"key": key, **(it if isinstance(it, dict) else {"logged": it})} for key, it in figures]
        boots += map(_of_its_release, _read(name, "boots", document.get("boots", []), named))
        constants += _read(name, "constants", document.get("constants", []))
    found = Measurements(**named, boots=tuple(boots), constants=tuple(constants))
    _check_failures(found)
    _check_proofs(found)
    return found


def _document(name: str, text: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MeasurementError(f"{name} is not TOML: {error}.") from None
    if unknown := sorted(document.keys() - _TABLES.keys()):
        raise MeasurementError(f"{name}: {unknown[0]} is not a table of the corpus. Use one of {', '.join(_TABLES)}.")
    return document


def _read(name: str, kind: str, tables: object, context: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401  as in _TABLES
    """Return the tables of one kind in a file. Raises MeasurementError."""
    try:
        return _TABLES[kind].validate_json(json.dumps(tables, default=str), context=context)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (kind, *first["loc"])))
        raise MeasurementError(f"{name}: {where}: {first['msg']}.") from None


def _inherit(document: Mapping[str, Any], raw: dict[str, dict[str, Any]], name: str) -> None:
    """Fill each deployment with the fields of the one that it is `like`. `raw` has those of earlier files, and gets these."""
    for key, table in document.get("deployments", {}).items():
        like = table.pop("like", None)
        if like is not None and like not in raw:
            raise MeasurementError(f"{name}: {key}: {like} is not defined. Use one of {', '.join(raw)}.")
        raw[key] = table if like is None else _merged(raw[like], table)
        document["deployments"][key] = raw[key]


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with changes applied, including in nested tables."""
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merged(base[key], value) if isinstance(base.get(key), dict) else value
    return merged


def _deployments(name: str, tables: Mapping[str, dict[str, Any]]) -> Mapping[str, Deployment]:
    """Return the deployments of a file. A model or device outside the catalog is described in their tables."""
    outside = {"architecture", "config", "device"}
    plain = {
        key: {"accelerator": ""} | {k: v for k, v in table.items() if k not in outside} for key, table in tables.items()
    }
    found: dict[str, Deployment] = _read(name, "deployments", plain)
    for key in tables:
        try:
            if model := tables[key].get("architecture"):
                spec = replace(spec_of(model["model"], model.get("quantization", "bf16")), **model["changes"])
                found[key] = replace(found[key], model_spec=spec)
            if config := tables[key].get("config"):
                published = json.loads(CONFIGS.read_text(encoding="utf-8"))[config]
                found[key] = replace(found[key], model_spec=model_from_config(published, name=found[key].model))
            if device := tables[key].get("device"):
                found[key] = replace(found[key], device=parse_device(device))
        except (PlanningError, TypeError, KeyError) as error:
            raise MeasurementError(f"{name}: deployments.{key}: {error}.") from None
    return found


def _of_its_release(boot: Boot) -> Boot:
    """Return a boot with the vLLM version in its image's name. Default: that of the deployment, or of this project's image."""
    version = _VERSION.search(boot.image)
    return boot if version is None else replace(boot, deployment=replace(boot.deployment, image_version=version[1]))


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
    found: list[tuple[Boot, Figure]] = []
    for entry in constant.read_off:
        boot_id, _, key = entry.partition(" ")
        boot = measurements.boot(boot_id)
        rows = [(boot, figure) for figure in boot.figures if figure.key == key]
        if not rows:
            raise MeasurementError(f"{FILE.name}: constants: {constant.name}: {boot_id} has no figure {key}.")
        found += rows
    return tuple(found)


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


def _check_proofs(measurements: Measurements) -> None:
    """Raise MeasurementError if a constant was fitted to a row of an unseen source, or to another boot of its deployment: it would prove nothing."""
    fitted = {
        (boot.deployment_id, figure.key): constant.name
        for constant in measurements.constants
        for boot, figure in read_off(constant, measurements)
    }
    for boot in measurements.boots:
        names = [fitted[boot.deployment_id, one.key] for one in boot.figures if (boot.deployment_id, one.key) in fitted]
        if names and any(source.unseen for source in boot.sources):
            raise MeasurementError(
                f"{FILE.name}: constants: {names[0]} was fitted to {boot.id} or to another run of its deployment, but the source of "
                f"{boot.id} is marked unseen. Remove its line `unseen = true`."
            )
