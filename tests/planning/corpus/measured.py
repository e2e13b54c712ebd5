"""Measured behavior of servers: boots with outcomes and figures, and the planner's subject for each.

measured.toml has the founding sources and the constants; the comment at its top describes each key, as the classes below have them.
Each file in `boots/` has one later source in the same format.
"""

import dataclasses
import datetime as dt
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from msgspec import ValidationError as ConversionError
from msgspec import convert
from msgspec.structs import replace as replace_struct
from pydantic import ConfigDict, TypeAdapter, ValidationError

from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.cost.subject import subject_of as planned_subject
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.devices import parse_device
from gemma_serving.planning.model.catalog import spec_of
from gemma_serving.planning.model.hf_config import model_from_config
from gemma_serving.planning.question.types import StartupPlan
from gemma_serving.planning.settings.cloud_run import ProbeSettings
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.paths import OF_A_STACK
from gemma_serving.planning.settings.question import FACTS, NO_SERVICE, NO_TPU, Facts, Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.settings.workload import Workload

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

T = TypeVar("T")
_Tables = dict[str, dict[str, Any]]


class MeasurementError(ValueError):
    """A file of the corpus is invalid. The message is one sentence that names the file and the key."""


def sequential_s(start: StartupPlan) -> float:
    """Return the seconds of a start without stages side by side, as by `docker run` without the agent."""
    return start.total_s + start.beside_s


@dataclass(frozen=True, slots=True)
class FigureKind:
    """One kind of figure: its name on the page, the planner's tolerance, and its place in the plan."""

    name: str
    tolerance: float
    read: Callable[[Subject], float]


KINDS: Final[Mapping[str, FigureKind]] = {
    "checkpoint": FigureKind("checkpoint", WEIGHTS, lambda planned: planned.memory.checkpoint_gib),
    "weights": FigureKind("weights per device", WEIGHTS, lambda planned: planned.memory.weights_gib),
    "host_load_peak": FigureKind(
        "host memory while loading", WEIGHTS, lambda planned: planned.memory.load_peak_host_gib
    ),
    "load_peak": FigureKind(
        "device memory while loading", WEIGHTS, lambda planned: planned.memory.load_peak_device_gib
    ),
    "kv": FigureKind("KV cache per device", KV, lambda planned: planned.memory.kv_gib),
    "kv_tokens": FigureKind("KV tokens", KV, lambda planned: planned.memory.kv_tokens),
    "kv_blocks": FigureKind("KV blocks", KV, lambda planned: planned.memory.kv_blocks),
    "kv_tokens_per_gib": FigureKind(
        "KV tokens per GiB", KV, lambda planned: planned.memory.kv_tokens / planned.memory.kv_gib
    ),
    "kv_concurrency": FigureKind("KV, longest requests", KV, lambda planned: planned.memory.max_concurrency),
    "kv_request": FigureKind("KV of one request", KV, lambda planned: planned.memory.kv_request_gib),
    "load": FigureKind("loading", STARTUP, lambda planned: planned.startup.load_s),
    "compile": FigureKind("compile and warm-up", STARTUP, lambda planned: planned.startup.compile_s),
    "startup": FigureKind("start-up, total", STARTUP, lambda planned: sequential_s(planned.startup)),
    "restart": FigureKind(
        "start-up, image pulled", STARTUP, lambda planned: sequential_s(planned.startup) - constant("VM_IMAGE_PULL_S")
    ),
    "warm_restart": FigureKind("restart, compile cache kept", STARTUP, lambda planned: planned.startup.restart_s),
    "decode": FigureKind("decoding, one request", DECODE, lambda planned: planned.throughput.decode_tok_per_s),
    "decode_16": FigureKind(
        "decoding, 16 requests", SATURATION, lambda planned: planned.throughput.saturated_tok_per_s
    ),
    "decode_64": FigureKind(
        "decoding, 64 requests", SATURATION, lambda planned: planned.throughput.saturated_tok_per_s
    ),
}
"""Figures allowed in the corpus, by key."""
WHOLE_STARTS: Final = ("startup", "restart", "warm_restart")
"""Figures from the container's start to the first response, with or without the pull of the image."""
STARTS: Final = ("load", "compile", *WHOLE_STARTS)
"""Figures of a start: of its parts, and of the whole."""


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

    @property
    def publisher(self) -> str:
        """Who published it: the owner of a repository, otherwise the words before the first comma."""
        return re.split(r"[/,]", self.citation, maxsplit=1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFigure:
    """One figure as it was logged."""

    key: str
    kind: FigureKind
    logged: float
    divided_by: float = 1
    note: str = ""
    beyond: str = ""
    first: float | None = None

    @property
    def measured(self) -> float:
        """The reported value, for one device."""
        return self.logged / self.divided_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """A deployment that was started, its outcome, and its reported figures."""

    id: str
    title: str
    deployment_id: str
    deployment: Question
    sources: tuple[ReportSource, ...]
    outcome: Literal["runs", "dies", "files"]
    at: Literal["arguments", "loading", "memory", "programs"] | None = None
    message: str = ""
    image: str = ""
    path: str = ""
    figures: tuple[LoggedFigure, ...] = ()
    padding_gap: int | None = None
    usable_gib: float | None = None
    spare_gib: float | None = None
    patched: bool = False
    superseded: str = ""
    beyond: str = ""
    ambiguous: str = ""
    first_right: bool | None = None

    @property
    def died(self) -> bool:
        """True if the server crashed before it was ready."""
        return self.outcome == "dies"

    @property
    def evidence(self) -> Literal["unseen", "known"]:
        """Class of the boot: unseen only if all of its sources are, so that nothing in the planner was set from its rows."""
        return "unseen" if all(source.unseen for source in self.sources) else "known"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConstant:
    """A constant of `gemma_serving/planning/data/overheads.py`, and the figures that it was derived from: "BOOT KIND" in the file."""

    name: str
    read_off: tuple[tuple[Boot, LoggedFigure], ...]


@dataclass(frozen=True, slots=True)
class Measurements:
    """Contents of all files."""

    sources: Mapping[str, ReportSource]
    deployments: Mapping[str, Question]
    boots: tuple[Boot, ...]
    constants: tuple[ReadConstant, ...]

    def boot(self, boot_id: str) -> Boot:
        """Return the boot with an id. Raises MeasurementError."""
        return _find({boot.id: boot for boot in self.boots}, boot_id)

    @property
    def fitted(self) -> Mapping[tuple[str, str], str]:
        """Constants by the deployment and the kind of each figure that they were derived from."""
        return {(boot.deployment_id, figure.key): one.name for one in self.constants for boot, figure in one.read_off}


_STRICT: Final = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
_TABLES: Final[Mapping[str, TypeAdapter[Any]]] = {
    "sources": TypeAdapter(dict[str, ReportSource], config=_STRICT),
    "boots": TypeAdapter(dict[str, Boot], config=_STRICT),
    "constants": TypeAdapter(dict[str, ReadConstant], config=_STRICT),
}
"""Tables of a file that pydantic reads. Unknown keys and wrong types are rejected."""
_KINDS: Final = ("sources", "deployments", "boots", "constants")


@cache
def load() -> Measurements:
    """Return the project's measurements. Raises MeasurementError."""
    return parse_named({path.name: path.read_text(encoding="utf-8") for path in (FILE, *sorted(BOOTS.glob("*.toml")))})


def parse_named(texts: Mapping[str, str]) -> Measurements:
    """Return the measurements in TOML texts by file name. Later texts can reference ids of earlier ones.

    Raises:
        MeasurementError: for the first error: an unknown key, a wrong type, an undefined or repeated id.
    """
    known: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
    raw: dict[str, dict[str, Any]] = {}
    for name, text in texts.items():
        for kind, key, table in _tables(name, text):
            if key in known[kind]:
                raise MeasurementError(f"{name}: {kind}: the id {key} is used twice. Choose another.")
            try:
                known[kind][key] = _made(kind, key, table, known, raw)
            except ValidationError as error:
                first = error.errors()[0]
                raise MeasurementError(f"{name}: {kind}.{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
            except (ConversionError, PlanningError, MeasurementError, TypeError, KeyError) as error:
                raise MeasurementError(f"{name}: {kind}.{key}: {error}.") from None
    boots = tuple(known["boots"].values())
    constants = tuple(known["constants"].values())
    return Measurements(known["sources"], known["deployments"], boots, constants)


def _tables(name: str, text: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the tables of a file with kind and id, each before those that can reference it."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MeasurementError(f"{name} is not TOML: {error}.") from None
    if unknown := sorted(document.keys() - {*_KINDS}):
        raise MeasurementError(f"{name}: {unknown[0]} is not a table of the corpus. Use one of {', '.join(_KINDS)}.")
    for kind in ("sources", "deployments"):
        yield from ((kind, key, table) for key, table in document.get(kind, {}).items())
    yield from (("boots", table["id"], table) for table in document.get("boots", ()))
    yield from (("constants", table["name"], table) for table in document.get("constants", ()))


def _made(kind: str, key: str, table: dict[str, Any], known: _Tables, raw: _Tables) -> object:
    """Return what a table describes. `known` has the tables before it. `raw` has the fields of each deployment, and gets these."""
    if kind == "deployments":
        raw[key] = _merged(_find(raw, table.pop("like")), table) if "like" in table else table
        return _deployment(raw[key])
    if kind == "boots":
        table["deployment_id"] = table["deployment"]
        deployment = _find(known["deployments"], table["deployment"])
        version = _VERSION.search(table.get("image", ""))
        table["deployment"] = deployment.changed(image=image_of_version(version[1])) if version else deployment
        table["sources"] = [_find(known["sources"], source) for source in table["sources"]]
        table["figures"] = [
            {"key": name, "kind": _find(KINDS, name), **(it if isinstance(it, dict) else {"logged": it})}
            for name, it in table.get("figures", {}).items()
        ]
    if kind == "constants":
        rows = [(_find(known["boots"], boot), name) for boot, name in map(str.split, table["read_off"])]
        table["read_off"] = [(boot, _find({one.key: one for one in boot.figures}, name)) for boot, name in rows]
    return _TABLES[kind].validate_python({key: table})[key]


def _find(known: Mapping[str, T], key: str) -> T:
    if key not in known:
        raise MeasurementError(f"{key} is not defined. Use one of {', '.join(known)}")
    return known[key]


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with changes applied, including in nested tables."""
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merged(base[key], value) if isinstance(base.get(key), dict) else value
    return merged


def _deployment(table: Mapping[str, Any]) -> Question:
    """Return a deployment. A model or device outside the catalog is described in its table."""
    fields = dict(table)
    model = fields.pop("architecture", None)
    config = fields.pop("config", None)
    blocks = {"vllm": VllmOptions, "workload": Workload}
    for name in blocks.keys() & fields.keys():
        blocks[name](**fields[name])  # raises TypeError for an unknown key, which `convert` ignores in dataclasses
        fields[name] = convert(fields[name], blocks[name])
    if "image_version" in fields:
        fields["image"] = image_of_version(fields.pop("image_version"))
    if run := fields.get("cloud_run"):
        probe = ProbeSettings(**run["startup_probe"])
        fields["cloud_run"] = dataclasses.replace(NO_SERVICE, **{**run, "startup_probe": probe})
    if "tpu" in fields:
        fields["tpu"] = dataclasses.replace(NO_TPU, **fields["tpu"])
    if model:
        spec = spec_of(model["model"], model.get("quantization", "bf16"))
        fields["model_spec"] = replace_struct(spec, **model["changes"])
    if config:
        published = json.loads(CONFIGS.read_text(encoding="utf-8"))[config]
        fields["model_spec"] = model_from_config(published, name=fields["model"])
    if "device" in fields:
        fields["device"] = parse_device(fields["device"])
    if unread := fields.keys() & OF_A_STACK:
        raise MeasurementError(f"{sorted(unread)} is of a stack's file")
    facts = convert({name: fields.pop(name) for name in FACTS if name in fields}, Facts)
    if "accept_findings" in fields:
        fields["accept_findings"] = convert(fields["accept_findings"], tuple[str, ...])
    return Question(facts=facts).changed(**fields)


def subject_of(boot: Boot) -> Subject:
    """Return the planner's subject for the boot."""
    # A published vulnerability does not decide whether a server starts.
    accepted = (*boot.deployment.settings.accept_findings, "SEC11")
    subject = examine(boot.deployment.changed(accept_findings=accepted))
    resolved = subject.resolved
    if boot.usable_gib is not None:
        resolved = replace_struct(
            resolved, accelerator=replace_struct(resolved.accelerator, usable_gib=boot.usable_gib)
        )
    if boot.padding_gap is not None:
        resolved = replace_struct(resolved, padding_gap=boot.padding_gap)
    return subject if resolved is subject.resolved else planned_subject(resolved)
