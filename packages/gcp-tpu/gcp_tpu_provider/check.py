"""Check inputs: fill in defaults, and report each error as one sentence with its property path. Unknown values pass."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gcp_tpu_provider import wire
from gcp_tpu_provider.compute_request import (
    COMPUTE_ENGINE,
    MAX_REQUEST_VALID_S,
    MIN_RUN_S,
    MODELS,
    REQUEST_KEY,
)
from gcp_tpu_provider.machines import GENERATIONS, MACHINE_TYPES, outside_generation
from gcp_tpu_provider.properties import Property, Schema, fields_of
from gcp_tpu_provider.properties import inputs as known_inputs

MAX_FLEX_START_S = 604_800
"""Seven days (Cloud TPU documentation, "Request TPUs with flex-start")."""
MAX_METADATA_VALUE_BYTES = 256 * 1024
MAX_LABELS = 63
"""Google allows 64; the provider adds one."""
ID_PATTERN = re.compile(r"[A-Za-z0-9_.~+%-]+")
"""From the discovery document, `queuedResourceId` and `nodeId`."""
ZONE_PATTERN = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
PATTERNS: Mapping[str, tuple[re.Pattern[str], str]] = {
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
    "runtimeVersion": (
        re.compile(r"[a-z0-9][a-z0-9.-]*|projects/[a-z0-9.:-]+/global/images/(family/)?[a-z0-9-]+"),
        "a runtime version such as v2-alpha-tpuv6e, or for `api: compute-engine` an image such as projects/P/global/images/family/F",
    ),
    "tags": (re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"), "a network tag of lower-case letters, digits and dashes"),
    "labels": (re.compile(r"[a-z0-9_-]{0,63}"), "a label value of at most 63 characters of a-z, 0-9, _ and -"),
    "description": (re.compile(r".{0,512}", re.DOTALL), "a text of at most 512 characters"),
}
"""Pattern of a text, or of each text of a list or map, and the allowed texts in words."""
KEY_PATTERNS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "labels": (
        re.compile(r"[a-z][a-z0-9_-]{0,62}"),
        "must start with a lower-case letter and have at most 63 characters of a-z, 0-9, _ and -",
    ),
    "metadata": (re.compile(r"[a-zA-Z0-9_-]{1,128}"), "must have 1 to 128 characters of a-z, A-Z, 0-9, _ and -"),
}
INSTANCE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
TYPES: Mapping[str, tuple[type, str]] = {
    "string": (str, "a string"),
    "integer": (int, "a whole number"),
    "boolean": (bool, "true or false"),
    "array": (list, "a list"),
    "object": (dict, "an object"),
}
"""Type in the schema: type in Python, and the words for it."""


@dataclass(frozen=True, slots=True)
class InputError:
    """An invalid input: its property path and a sentence for the user."""

    path: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedInputs:
    """Inputs with their defaults and with their secrets still wrapped, and the errors in them."""

    inputs: wire.Properties
    mistakes: tuple[InputError, ...]


def auto_name(urn: str) -> str:
    """Return the resource's name with 7 hex digits of the SHA-256 of its URN.

    The name is not random, so the next creation finds the request that a killed engine left.
    """
    name = re.sub(r"[^a-z0-9-]+", "-", urn.rpartition("::")[2].lower()).strip("-") or "tpu"
    name = name if name[0].isalpha() else f"tpu-{name}"
    return f"{name[:45]}-{hashlib.sha256(urn.encode()).hexdigest()[:7]}"


def check(urn: str, given: Mapping[str, Any], *, project: str = "", proposed_name: str = "") -> CheckedInputs:
    """Check inputs as the engine sends them. `project` is the provider's setting, `proposed_name` comes from the autonaming settings."""
    inputs = {key: value for key, value in given.items() if value is not None and key != "__defaults"}
    _fill_defaults(inputs, urn, project, proposed_name)
    plain = cast("wire.Properties", wire.reveal(inputs))
    mistakes = list(_members("", plain, known_inputs()))
    if not mistakes:
        mistakes = [mistake for rule in RULES for mistake in rule(plain)]
        mistakes += _secrets(inputs)
    secrets = {leaf for leaf, is_hidden in wire.leaves(inputs) if is_hidden and isinstance(leaf, str)}
    hidden = sorted(secrets, key=len, reverse=True)
    return CheckedInputs(inputs=inputs, mistakes=tuple(_hide(mistake, hidden) for mistake in mistakes))


def _hide(mistake: InputError, hidden: list[str]) -> InputError:
    sentence = mistake.sentence
    for text in hidden:
        sentence = sentence.replace(f'"{text}"', "a secret") if text else sentence
    return InputError(mistake.path, sentence)


def _fill_defaults(inputs: wire.Properties, urn: str, project: str, proposed_name: str) -> None:
    found = [
        project,
        *(os.environ.get(name, "") for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT")),
    ]
    defaults: dict[str, Any] = {
        **{name: item.default for name, item in known_inputs().items()},
        "project": next((item for item in found if item), None),
        "queuedResourceId": proposed_name or auto_name(urn),
        "waitFor": "ready" if "ready" in inputs else "active",
    }
    for name, value in defaults.items():
        if value is not None:
            inputs.setdefault(name, value)
    identifier = wire.reveal(inputs["queuedResourceId"])
    if isinstance(identifier, str):
        suffix = "" if wire.reveal(inputs.get("api")) == COMPUTE_ENGINE else "-node"
        inputs.setdefault("nodeId", wire.UNKNOWN if identifier == wire.UNKNOWN else f"{identifier}{suffix}")
    for name in ("serviceAccount", "ready"):
        nested = inputs.get(name)
        if isinstance(nested, dict) and not wire.is_secret(nested):
            inputs[name] = {**_field_defaults(known_inputs()[name].schema), **cast("dict[str, Any]", nested)}


def _field_defaults(schema: Schema) -> dict[str, Any]:
    return {item.name: item.default for item in fields_of(schema).values() if item.default is not None}


def _members(prefix: str, values: wire.Properties, known: Mapping[str, Property]) -> Iterator[InputError]:
    """Check names, types and limits of the properties of the resource, or of the fields of an object."""
    for name in values:
        if name not in known:
            yield InputError(f"{prefix}{name}", f"`{prefix}{name}` is unknown. Known names: {', '.join(known)}.")
    for name, item in known.items():
        if name in values:
            mistakes = list(_type(f"{prefix}{name}", values[name], item.schema))
            yield from mistakes or _limits(f"{prefix}{name}", values[name], item)
        elif item.required:
            yield InputError(
                f"{prefix}{name}", f"`{prefix}{name}` is missing: {item.description.partition(' One of ')[0]}"
            )


def _type(path: str, value: wire.Value, schema: Schema) -> Iterator[InputError]:
    if value == wire.UNKNOWN:
        return
    kind = str(schema["type"])
    python_type, words = TYPES[kind]
    if not isinstance(value, python_type) or (isinstance(value, bool) and kind != "boolean"):
        found = "must be" if path.startswith("metadata") else f"is {_show(value)}, but must be"
        yield InputError(path, f"`{path}` {found} {words}.")  # metadata values are never shown
    elif kind == "array":
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _type(f"{path}[{index}]", item, schema["items"])
    elif kind == "object" and "$ref" in schema:
        yield from _members(f"{path}.", cast("dict[str, Any]", value), fields_of(schema))
    elif kind == "object":
        for key, item in cast("dict[str, Any]", value).items():
            yield from _type(key_path(path, key), item, schema["additionalProperties"])


def _limits(path: str, value: wire.Value, item: Property) -> Iterator[InputError]:
    """Check a value of the right type against its list of allowed values, or its minimum."""
    if item.choices and value not in {*item.choices, wire.UNKNOWN}:
        yield InputError(path, f"`{path}` is {_show(value)}, but must be one of {', '.join(item.choices)}.")
    if item.least is not None and isinstance(value, int) and value < item.least:
        unit = "GB" if item.name.endswith("Gb") else "seconds"
        yield InputError(path, f"`{path}` is {value}, but must be at least {item.least} ({unit}).")


def key_path(path: str, key: str) -> str:
    """Return the property path of a map key in the engine's syntax."""
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z_$][\w$]*", key) else f'{path}["{key}"]'


def _show(value: wire.Value) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - fits a line of a terminal


def _known(inputs: wire.Properties, name: str) -> wire.Value:
    """Return the value, or None if it is absent or unknown."""
    value = inputs.get(name)
    return None if value == wire.UNKNOWN else value


def _texts(inputs: wire.Properties) -> Iterator[InputError]:
    for name, (pattern, allowed) in PATTERNS.items():
        for path, item in _items(name, _known(inputs, name)):
            if name == "acceleratorType" and outside_generation(str(item)) is not None:
                continue  # reported separately
            if isinstance(item, str) and item != wire.UNKNOWN and not pattern.fullmatch(item):
                yield InputError(path, f"`{path}` is {_show(item)}, but must be {allowed}.")
    for name, (pattern, allowed) in KEY_PATTERNS.items():
        for key in cast("dict[str, str]", _known(inputs, name) or {}):
            if not pattern.fullmatch(key):
                yield InputError(key_path(name, key), f'{name.removesuffix("s").capitalize()} key "{key}" {allowed}.')


def _items(name: str, value: wire.Value) -> Iterator[tuple[str, wire.Value]]:
    """Yield the path and the value of each item of a list or map, otherwise of the value itself."""
    if isinstance(value, list):
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(cast("list[Any]", value)))
    elif isinstance(value, dict):
        yield from ((key_path(name, key), item) for key, item in cast("wire.Properties", value).items())
    else:
        yield name, value


def _generation(inputs: wire.Properties) -> Iterator[InputError]:
    given = _known(inputs, "acceleratorType")
    outside = outside_generation(given) if isinstance(given, str) else None
    if outside is not None:
        names = f"{', '.join(GENERATIONS[:-1])} or {GENERATIONS[-1]}"
        yield InputError(
            "acceleratorType",
            f"`acceleratorType` is {_show(given)}, but {outside.title} requires Compute Engine or Google Kubernetes Engine "
            f"({outside.source}). Choose a type of {names}, such as {next(iter(MACHINE_TYPES))}.",
        )


def _project(inputs: wire.Properties) -> Iterator[InputError]:
    if "project" not in inputs:
        yield InputError("project", "`project` is missing. Set it, or set `gcp-tpu:project` or GOOGLE_CLOUD_PROJECT.")


def _zones(inputs: wire.Properties) -> Iterator[InputError]:
    if ("zones" in inputs) == ("zone" in inputs):
        yield InputError("zones", "Set either `zones` (a list in order of preference) or `zone`.")
        return
    zones = _known(inputs, "zones")
    if zones is None:
        return
    if not zones:
        yield InputError("zones", "`zones` is empty, but must list at least one zone, such as us-east5-a.")
    for zone in sorted({item for item in zones if item != wire.UNKNOWN and zones.count(item) > 1}):
        yield InputError("zones", f"`zones` lists {zone} more than once. Remove the duplicate.")


def _models(inputs: wire.Properties) -> list[str]:
    """Return the known provisioning models, of `provisioningModel` or of `forms`."""
    items = cast("list[wire.Value]", _known(inputs, "forms") or [])
    named = [_known(cast("wire.Properties", item), "provisioningModel") for item in items if isinstance(item, dict)]
    return [str(model) for model in (_known(inputs, "provisioningModel"), *named) if model is not None]


def _forms(inputs: wire.Properties) -> Iterator[InputError]:
    if ("forms" in inputs) == ("provisioningModel" in inputs):
        yield InputError(
            "provisioningModel", "Set either `provisioningModel` or `forms` (a list in order of preference)."
        )
        return
    forms = cast("list[wire.Properties] | None", _known(inputs, "forms"))
    if forms is None:
        return
    if not forms:
        yield InputError("forms", "`forms` is empty, but must list at least one form, such as flex-start.")
    models = _models(inputs)
    zones = cast("list[str | None]", _known(inputs, "zones") or [_known(inputs, "zone")])
    is_known = not {None, wire.UNKNOWN} & set(zones)
    for index, form in enumerate(forms):
        path, model = f"forms[{index}]", form["provisioningModel"]
        if model in models[:index]:
            yield InputError(path, f"`forms` lists {model} more than once. Remove the duplicate.")
        for zone in cast("list[str]", _known(form, "zones") or []):
            if is_known and zone not in {*zones, wire.UNKNOWN}:
                yield InputError(f"{path}.zones", f"`{path}.zones` names {zone}, which `zones` does not list.")


def _run_duration(inputs: wire.Properties) -> Iterator[InputError]:
    is_flex, given = "flex-start" in _models(inputs), inputs.get("maxRunDurationS")
    if is_flex and given is None:
        yield InputError(
            "maxRunDurationS",
            f"`maxRunDurationS` is missing. flex-start requires the run duration of the nodes, 1 to {MAX_FLEX_START_S} s (7 days).",
        )
    if isinstance(given, int) and given > MAX_FLEX_START_S and is_flex:
        yield InputError(
            "maxRunDurationS",
            f"`maxRunDurationS` is {given}, but flex-start allows at most {MAX_FLEX_START_S} s (7 days).",
        )


def _reservation(inputs: wire.Properties) -> Iterator[InputError]:
    model = _known(inputs, "provisioningModel")
    if model == "reservation" and "reservationName" not in inputs:
        yield InputError(
            "reservationName",
            "`reservationName` is missing. It is required because `provisioningModel` is reservation.",
        )
    if "reservationName" in inputs and (model not in {None, "reservation"} or "forms" in inputs):
        yield InputError(
            "reservationName",
            f"`reservationName` is set, but {'`forms` is set' if model is None else f'`provisioningModel` is {model}'}. "
            "Remove it or set `provisioningModel` to reservation.",
        )


def _sizes(inputs: wire.Properties) -> Iterator[InputError]:
    labels = len(_known(inputs, "labels") or ())
    if labels > MAX_LABELS:
        yield InputError(
            "labels",
            f"`labels` has {labels} entries, but at most {MAX_LABELS} are allowed. The provider adds one more.",
        )
    for path, value in _items("metadata", _known(inputs, "metadata") or {}):
        size = len(value.encode())
        if size > MAX_METADATA_VALUE_BYTES:
            yield InputError(
                path,
                f"`{path}` has {size} bytes, but a metadata value has at most {MAX_METADATA_VALUE_BYTES} (256 KiB).",
            )


def _ready(inputs: wire.Properties) -> Iterator[InputError]:
    ready, metadata = _known(inputs, "ready"), _known(inputs, "metadata")
    if _known(inputs, "waitFor") == "ready" and "ready" not in inputs:
        yield InputError("ready", "`ready` is missing. It is required because `waitFor` is ready.")
    if ready is None or ("metadata" in inputs and metadata is None):
        return
    known = cast("dict[str, str]", metadata or {})
    key = ready.get("documentMetadataKey")
    if key not in {None, wire.UNKNOWN} and key not in known:
        yield InputError(
            "ready.documentMetadataKey", f'`ready.documentMetadataKey` is "{key}", but `metadata` has no such key.'
        )
    enabled = known.get("enable-guest-attributes", "")
    if enabled != wire.UNKNOWN and enabled.upper() != "TRUE":
        yield InputError(
            "metadata",
            "`metadata` must contain `enable-guest-attributes: TRUE`. Otherwise the TPU VM cannot report that it is ready.",
        )


def _compute_engine(inputs: wire.Properties) -> Iterator[InputError]:
    """Yield errors about properties that Compute Engine does not support, or limits differently."""
    if _known(inputs, "api") != COMPUTE_ENGINE:
        return
    model, accelerator = _known(inputs, "provisioningModel"), _known(inputs, "acceleratorType")
    if accelerator is not None and accelerator not in MACHINE_TYPES:
        kinds = ", ".join(MACHINE_TYPES)
        yield InputError(
            "acceleratorType",
            f"`acceleratorType` is {_show(accelerator)}, but with `api: compute-engine` it must be one of {kinds}. Set `api` to cloud-tpu.",
        )
    if model is not None and model not in MODELS:
        models = ", ".join(MODELS)
        yield InputError(
            "provisioningModel",
            f"`provisioningModel` is {_show(model)}, but with `api: compute-engine` it must be one of {models}. Set `api` to cloud-tpu.",
        )
    if inputs.get("description"):
        yield InputError(
            "description",
            "`description` cannot be set with `api: compute-engine`. Remove it, or set `api` to cloud-tpu.",
        )


def _instance(inputs: wire.Properties) -> Iterator[InputError]:
    """Yield errors about names and durations that Compute Engine instances do not support."""
    if _known(inputs, "api") != COMPUTE_ENGINE:
        return
    image, identifier = _known(inputs, "runtimeVersion"), _known(inputs, "queuedResourceId")
    if isinstance(image, str) and "/" not in image:
        yield InputError(
            "runtimeVersion",
            f"`runtimeVersion` is {_show(image)}, but with `api: compute-engine` it must name a boot image, such as projects/P/global/images/family/F.",
        )
    if isinstance(identifier, str) and not INSTANCE_NAME.fullmatch(identifier):
        yield InputError(
            "queuedResourceId",
            f"`queuedResourceId` is {_show(identifier)}, but an instance name has at most 63 characters of a-z, 0-9 and -, and starts with a letter.",
        )
    if REQUEST_KEY in (_known(inputs, "metadata") or {}):
        yield InputError("metadata", f"Metadata key `{REQUEST_KEY}` is reserved for the provider. Remove it.")
    if identifier is not None and _known(inputs, "nodeId") not in {None, identifier}:
        yield InputError(
            "nodeId", "`nodeId` cannot be set with `api: compute-engine`, because the instance is the node. Remove it."
        )
    if "flex-start" not in _models(inputs):
        return
    wait_s, run_s = _known(inputs, "waitPerZoneS"), _known(inputs, "maxRunDurationS")
    if isinstance(wait_s, int) and wait_s > MAX_REQUEST_VALID_S:
        yield InputError(
            "waitPerZoneS",
            f"`waitPerZoneS` is {wait_s}, but Compute Engine keeps a flex-start request for at most {MAX_REQUEST_VALID_S} s (2 hours). List more zones.",
        )
    if isinstance(run_s, int) and run_s < MIN_RUN_S:
        yield InputError(
            "maxRunDurationS", f"`maxRunDurationS` is {run_s}, but must be at least {MIN_RUN_S} (seconds)."
        )


def _secrets(inputs: wire.Properties) -> Iterator[InputError]:
    metadata = inputs.get("metadata")
    if not wire.has_secret(metadata):
        return
    items = cast("dict[str, Any]", metadata).items() if not wire.is_secret(metadata) else ()
    path = next((key_path("metadata", key) for key, value in items if wire.has_secret(value)), "metadata")
    yield InputError(
        path,
        f"`{path}` is a secret, but every process on the TPU VM and every user who can view the node can read metadata. "
        "Store the value in Secret Manager and have the TPU VM's service account read it there.",
    )


RULES: tuple[Callable[[wire.Properties], Iterator[InputError]], ...] = (
    _generation,
    _texts,
    _project,
    _zones,
    _forms,
    _run_duration,
    _reservation,
    _sizes,
    _ready,
    _compute_engine,
    _instance,
)
