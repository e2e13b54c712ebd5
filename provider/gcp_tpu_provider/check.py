"""Inputs checked: defaults filled in, every mistake one sentence with its property path. Values not known yet pass."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gcp_tpu_provider import wire
from gcp_tpu_provider.properties import INPUT_BY_NAME, INPUTS, TYPES, Schema

MAX_FLEX_START_S = 604_800
"""Seven days (Cloud TPU documentation, "Request TPUs with flex-start")."""
MAX_DESCRIPTION = 512
MAX_METADATA_VALUE_BYTES = 256 * 1024
MAX_LABELS = 63
"""Google allows 64; one is the provider's."""
ID_PATTERN = re.compile(r"[A-Za-z0-9_.~+%-]+")
"""From the discovery document, `queuedResourceId` and `nodeId`."""
ZONE_PATTERN = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
PATTERNS: dict[str, tuple[re.Pattern[str], str]] = {
    "project": (
        re.compile(r"([a-z][a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]"),
        "a project id of 6 to 30 characters, such as my-project-1",
    ),
    "zone": (ZONE_PATTERN, "a zone such as us-east5-a"),
    "zones": (ZONE_PATTERN, "a zone such as us-east5-a"),
    "queuedResourceId": (ID_PATTERN, "an id of letters, digits and _.~+%-"),
    "nodeId": (ID_PATTERN, "an id of letters, digits and _.~+%-"),
    "acceleratorType": (
        re.compile(r"v[0-9]+[a-z]*(litepod)?-[1-9][0-9]*"),
        "a type and size such as v6e-4 or v5litepod-8",
    ),
    "runtimeVersion": (re.compile(r"[a-z0-9][a-z0-9.-]*"), "a runtime version such as v2-alpha-tpuv6e"),
    "tags": (re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"), "a network tag of lower-case letters, digits and dashes"),
}
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
TYPE_WORDS = {
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One sentence about one property path."""

    path: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Inputs with their defaults, secrets still marked, and the mistakes that were found in them."""

    inputs: wire.Properties
    mistakes: tuple[Mistake, ...]


def auto_name(urn: str) -> str:
    """Return the resource's name and hex digits that follow from its URN.

    Not random: should the engine be killed while a creation runs, the next one asks for the same name, finds what is there and takes it over.
    """
    name = re.sub(r"[^a-z0-9-]+", "-", urn.rpartition("::")[2].lower()).strip("-") or "tpu"
    name = name if name[0].isalpha() else f"tpu-{name}"
    return f"{name[:45]}-{hashlib.sha256(urn.encode()).hexdigest()[:7]}"


def check(urn: str, given: Mapping[str, Any], *, project: str = "", proposed_name: str = "") -> Checked:
    """Check inputs as the engine sends them. `project` is the provider's own; `proposed_name` comes from autonaming settings."""
    inputs = {key: value for key, value in given.items() if value is not None and key != "__defaults"}
    _fill_defaults(inputs, urn, project, proposed_name)
    plain = cast("wire.Properties", wire.reveal(inputs))
    mistakes = [*_unknown_names(plain), *_types(plain)]
    if not mistakes:
        mistakes = [mistake for rule in RULES for mistake in rule(plain)]
        mistakes += _secrets(inputs)
    hidden = sorted(_secret_texts(inputs), key=len, reverse=True)
    return Checked(inputs=inputs, mistakes=tuple(_hide(mistake, hidden) for mistake in mistakes))


def _secret_texts(value: wire.Value) -> set[str]:
    """Return the texts inside secrets, so that no sentence repeats them."""
    if isinstance(value, dict):
        items = cast("wire.Properties", value)
        inside = wire.reveal(items) if wire.is_secret(items) else None
        found = {text for item in items.values() for text in _secret_texts(item)}
        return found | ({inside} if isinstance(inside, str) else _texts(inside))
    return (
        {text for item in cast("list[wire.Value]", value) for text in _secret_texts(item)}
        if isinstance(value, list)
        else set()
    )


def _texts(value: wire.Value) -> set[str]:
    if isinstance(value, dict):
        return {text for item in cast("wire.Properties", value).values() for text in _texts(item)}
    if isinstance(value, list):
        return {text for item in cast("list[wire.Value]", value) for text in _texts(item)}
    return {value} if isinstance(value, str) else set()


def _hide(mistake: Mistake, hidden: list[str]) -> Mistake:
    sentence = mistake.sentence
    for text in hidden:
        sentence = sentence.replace(f'"{text}"', "a secret") if text else sentence
    return Mistake(path=mistake.path, sentence=sentence)


def _fill_defaults(inputs: wire.Properties, urn: str, project: str, proposed_name: str) -> None:
    found = [
        project,
        *(os.environ.get(name, "") for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT")),
    ]
    defaults: dict[str, Any] = {
        **{item.name: item.default for item in INPUTS},
        "project": next((item for item in found if item), None),
        "queuedResourceId": proposed_name or auto_name(urn),
        "waitFor": "ready" if "ready" in inputs else "active",
    }
    for name, value in defaults.items():
        if value is not None:
            inputs.setdefault(name, value)
    identifier = wire.reveal(inputs["queuedResourceId"])
    if isinstance(identifier, str):
        inputs.setdefault("nodeId", wire.UNKNOWN if identifier == wire.UNKNOWN else f"{identifier}-node")
    for name in ("serviceAccount", "ready"):
        nested = inputs.get(name)
        if isinstance(nested, dict) and not wire.is_secret(nested):
            inputs[name] = {**_field_defaults(INPUT_BY_NAME[name].schema), **cast("dict[str, Any]", nested)}


def _field_defaults(schema: Schema) -> dict[str, Any]:
    fields = TYPES[schema["$ref"].rpartition(":")[2]]
    return {item.name: item.default for item in fields if item.default is not None}


def _mistake(path: str, sentence: str) -> Mistake:
    return Mistake(path=path, sentence=sentence)


def _unknown_names(inputs: wire.Properties) -> Iterator[Mistake]:
    for name in inputs:
        if name not in INPUT_BY_NAME:
            yield _mistake(
                name, f"`{name}` is not a property of a queued resource; known are {', '.join(INPUT_BY_NAME)}."
            )


def _types(inputs: wire.Properties) -> Iterator[Mistake]:
    for item in INPUTS:
        if item.name in inputs:
            yield from _type(item.name, inputs[item.name], item.schema)
        elif item.required:
            yield _mistake(item.name, f"`{item.name}` is missing: {item.description}")


def _type(path: str, value: wire.Value, schema: Schema) -> Iterator[Mistake]:
    if value == wire.UNKNOWN:
        return
    kind = str(schema["type"])
    matches = {
        "string": isinstance(value, str),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    if not matches[kind] and path.startswith("metadata"):
        yield _mistake(path, f"`{path}` has to be {TYPE_WORDS[kind]}.")  # values of metadata are never shown
    elif not matches[kind]:
        yield _mistake(path, f"`{path}` is {_show(value)}, but it has to be {TYPE_WORDS[kind]}.")
    elif kind == "array":
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _type(f"{path}[{index}]", item, schema["items"])
    elif kind == "object" and "$ref" in schema:
        yield from _fields(path, cast("dict[str, Any]", value), schema)
    elif kind == "object":
        for key, item in cast("dict[str, Any]", value).items():
            yield from _type(key_path(path, key), item, schema["additionalProperties"])


def _fields(path: str, value: dict[str, Any], schema: Schema) -> Iterator[Mistake]:
    fields = {item.name: item for item in TYPES[schema["$ref"].rpartition(":")[2]]}
    for name in value:
        if name not in fields:
            yield _mistake(f"{path}.{name}", f"`{path}.{name}` is unknown; known are {', '.join(fields)}.")
    for name, item in fields.items():
        if name in value:
            yield from _type(f"{path}.{name}", value[name], item.schema)
        elif item.required:
            yield _mistake(f"{path}.{name}", f"`{path}.{name}` is missing: {item.description}")


def key_path(path: str, key: str) -> str:
    """Return the property path of a map's key, as the engine writes it."""
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z_$][\w$]*", key) else f'{path}["{key}"]'


def _show(value: wire.Value) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line of a terminal


def _known(inputs: wire.Properties, name: str) -> wire.Value:
    """Return the value, or None when it is absent or not known yet."""
    value = inputs.get(name)
    return None if value == wire.UNKNOWN else value


def _patterns(inputs: wire.Properties) -> Iterator[Mistake]:
    for name, (pattern, allowed) in PATTERNS.items():
        value = _known(inputs, name)
        items = (
            [(f"{name}[{index}]", item) for index, item in enumerate(cast("list[Any]", value))]
            if isinstance(value, list)
            else [(name, value)]
        )
        for path, item in items:
            if isinstance(item, str) and item != wire.UNKNOWN and not pattern.fullmatch(item):
                yield _mistake(path, f"`{path}` is {_show(item)}, but it has to be {allowed}.")


def _choices(inputs: wire.Properties) -> Iterator[Mistake]:
    for item in INPUTS:
        value = _known(inputs, item.name)
        if item.choices and value is not None and value not in item.choices:
            yield _mistake(
                item.name, f"`{item.name}` is {_show(value)}, but it has to be one of {', '.join(item.choices)}."
            )


def _project(inputs: wire.Properties) -> Iterator[Mistake]:
    if "project" not in inputs:
        yield _mistake("project", "`project` is missing: give it, or set `gcp-tpu:project` or GOOGLE_CLOUD_PROJECT.")


def _zones(inputs: wire.Properties) -> Iterator[Mistake]:
    if ("zones" in inputs) == ("zone" in inputs):
        yield _mistake("zones", "Give either `zones` (a list, in the order in which they are tried) or `zone`.")
        return
    zones = _known(inputs, "zones")
    if zones is None:
        return
    if not zones:
        yield _mistake("zones", "`zones` is empty, but it has to name at least one zone, such as us-east5-a.")
    for zone in sorted({item for item in zones if item != wire.UNKNOWN and zones.count(item) > 1}):
        yield _mistake("zones", f"`zones` names {zone} more than once; each zone is tried once.")


def _run_duration(inputs: wire.Properties) -> Iterator[Mistake]:
    model, given = _known(inputs, "provisioningModel"), inputs.get("maxRunDurationS")
    if model == "flex-start" and given is None:
        yield _mistake(
            "maxRunDurationS",
            f"`maxRunDurationS` is missing: with flex-start Google wants to know when the nodes may be taken away, 1 to {MAX_FLEX_START_S} s (7 days).",
        )
    if isinstance(given, int) and given > MAX_FLEX_START_S and model == "flex-start":
        yield _mistake(
            "maxRunDurationS",
            f"`maxRunDurationS` is {given}, but flex-start allows at most {MAX_FLEX_START_S} s (7 days).",
        )


def _positive(inputs: wire.Properties) -> Iterator[Mistake]:
    ready = cast("wire.Properties", _known(inputs, "ready") or {})
    values = {name: inputs.get(name) for name in ("maxRunDurationS", "validUntilDurationS", "waitPerZoneS")}
    for path, value in {**values, "ready.timeoutS": ready.get("timeoutS")}.items():
        if isinstance(value, int) and value <= 0:
            yield _mistake(path, f"`{path}` is {value}, but it has to be a number of seconds above 0.")


def _reservation(inputs: wire.Properties) -> Iterator[Mistake]:
    model = _known(inputs, "provisioningModel")
    if model == "reservation" and "reservationName" not in inputs:
        yield _mistake("reservationName", "`reservationName` is missing: `provisioningModel` is reservation.")
    if model not in {None, "reservation"} and "reservationName" in inputs:
        yield _mistake(
            "reservationName",
            f"`reservationName` is given, but `provisioningModel` is {model}; it goes with reservation only.",
        )


def _labels(inputs: wire.Properties) -> Iterator[Mistake]:
    labels = cast("dict[str, str]", _known(inputs, "labels") or {})
    for key, value in labels.items():
        path = key_path("labels", key)
        if not LABEL_KEY.fullmatch(key):
            yield _mistake(
                path, f'Label "{key}" has to begin with a lower-case letter and have at most 63 of a-z, 0-9, _ and -.'
            )
        elif value != wire.UNKNOWN and not LABEL_VALUE.fullmatch(value):
            yield _mistake(
                path, f"`{path}` is {_show(value)}, but a label's value has at most 63 of a-z, 0-9, _ and -."
            )
    if len(labels) > MAX_LABELS:
        yield _mistake(
            "labels",
            f"`labels` has {len(labels)} entries, but at most {MAX_LABELS} are allowed beside the provider's own.",
        )


def _metadata(inputs: wire.Properties) -> Iterator[Mistake]:
    for key, value in cast("dict[str, str]", _known(inputs, "metadata") or {}).items():
        path, size = key_path("metadata", key), len(value.encode())
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", key):
            yield _mistake(path, f'Metadata key "{key}" has to have 1 to 128 of a-z, A-Z, 0-9, _ and -.')
        if size > MAX_METADATA_VALUE_BYTES:
            yield _mistake(
                path,
                f"`{path}` has {size} bytes, but a metadata value has at most {MAX_METADATA_VALUE_BYTES} (256 KiB).",
            )


def _description(inputs: wire.Properties) -> Iterator[Mistake]:
    length = len(_known(inputs, "description") or "")
    if length > MAX_DESCRIPTION:
        yield _mistake(
            "description", f"`description` has {length} characters, but at most {MAX_DESCRIPTION} are allowed."
        )


def _data_disks(inputs: wire.Properties) -> Iterator[Mistake]:
    for index, disk in enumerate(cast("list[dict[str, str]]", _known(inputs, "dataDisks") or [])):
        mode = disk.get("mode", "read-write")
        if mode not in {"read-write", "read-only", wire.UNKNOWN}:
            yield _mistake(
                f"dataDisks[{index}].mode",
                f"`dataDisks[{index}].mode` is {_show(mode)}, but it has to be read-write or read-only.",
            )


def _ready(inputs: wire.Properties) -> Iterator[Mistake]:
    ready, metadata = _known(inputs, "ready"), _known(inputs, "metadata")
    if _known(inputs, "waitFor") == "ready" and "ready" not in inputs:
        yield _mistake(
            "ready", "`ready` is missing: `waitFor` is ready, so it has to say how the machine tells that it is."
        )
    if ready is None or ("metadata" in inputs and metadata is None):
        return
    known = cast("dict[str, str]", metadata or {})
    key = ready.get("documentMetadataKey")
    if key not in {None, wire.UNKNOWN} and key not in known:
        yield _mistake(
            "ready.documentMetadataKey", f'`ready.documentMetadataKey` is "{key}", but `metadata` has no such key.'
        )
    enabled = known.get("enable-guest-attributes", "")
    if enabled != wire.UNKNOWN and enabled.upper() != "TRUE":
        yield _mistake(
            "metadata", "`metadata` needs `enable-guest-attributes: TRUE`, or the machine cannot say that it is ready."
        )


def _secrets(inputs: wire.Properties) -> Iterator[Mistake]:
    metadata = inputs.get("metadata")
    if not wire.has_secret(metadata):
        return
    items = cast("dict[str, Any]", metadata).items() if not wire.is_secret(metadata) else ()
    path = next((key_path("metadata", key) for key, value in items if wire.has_secret(value)), "metadata")
    yield _mistake(
        path,
        f"`{path}` is a secret, but every process on the machine and everyone who may see the node can read metadata; "
        "put the value into Secret Manager and let the machine's service account read it there.",
    )


RULES: tuple[Callable[[wire.Properties], Iterator[Mistake]], ...] = (
    _patterns,
    _choices,
    _project,
    _zones,
    _run_duration,
    _positive,
    _reservation,
    _labels,
    _metadata,
    _description,
    _data_disks,
    _ready,
)
