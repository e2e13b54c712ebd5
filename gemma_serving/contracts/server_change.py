"""Changes of a server, from the inputs of its queued resource or service."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from gemma_serving.contracts.compile_cache import changes_programs
from gemma_serving.contracts.fields import as_mapping, as_sequence, json_object
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY

MODEL: Final = "model"
IMAGE: Final = "image"
_SERVE: Final = "serve"
_INSTANCES: Final = {"minInstanceCount": "minInstances", "maxInstanceCount": "maxInstances"}
"""Setting of each count of a revision's scaling."""
_SHOWN_CHARACTERS: Final = 80
_SHARED_CHARACTERS: Final = 20
"""Shown of a long beginning that both values have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedValue:
    """A changed value. None means not set."""

    key: str
    before: str | None
    after: str | None

    def text(self) -> str:
        """Return the value before and after on one line, shortened to what differs."""
        before = "not set" if self.before is None else self.before
        after = "not set" if self.after is None else self.after
        start = 0
        if max(len(before), len(after)) > _SHOWN_CHARACTERS:
            differs = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), 0)
            start = max(differs - _SHARED_CHARACTERS, 0)
        return f"{self.key}: {_shortened(before, start)} -> {_shortened(after, start)}"


@dataclass(frozen=True, slots=True)
class ServerChange:
    """Values of a server that differ."""

    values: tuple[ChangedValue, ...]

    @property
    def compiles(self) -> bool:
        """True if the TPU VM cannot use the compiled programs of the server before it (`contracts.compile_cache`)."""
        return any(changes_programs(value.key, value.before, value.after) for value in self.values)


def flags_of(arguments: Sequence[str]) -> dict[str, str]:
    """Return the arguments after `vllm serve` by flag, without secrets, with the model as `model`."""
    found = {MODEL: arguments[0]} if arguments else dict[str, str]()
    for argument in arguments[1:]:
        flag, given, _ = argument.partition("=")
        if not flag.startswith("--"):  # the value of the preceding extra argument
            last = next(reversed(found))
            found[last] = f"{found[last]} {argument}".strip()
            continue
        text = masked(argument).removeprefix(f"{flag}=") if given else "on"
        found[flag] = f"{found[flag]}, {text}" if flag in found else text
    return found


def server_change(kind: str, before: Mapping[str, object], after: Mapping[str, object]) -> ServerChange | None:
    """Return what changes about the server of a resource of this type, from its inputs before and after.

    Return None if the inputs have no server, or if a part of it is known only after `up`.
    """
    old = _server(kind, before)
    new = _server(kind, after)
    return None if old is None or new is None else ServerChange(changed_values(old, new))


def changed_values(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ChangedValue, ...]:
    """Return the differences in the order of the new texts, with removed keys at the end."""
    return tuple(
        ChangedValue(key=key, before=before.get(key), after=after.get(key))
        for key in dict.fromkeys((*after, *before))
        if before.get(key) != after.get(key)
    )


def _server(kind: str, inputs: Mapping[str, object]) -> dict[str, str] | None:
    if kind == CAPACITY_TYPE:
        return _of_document(as_mapping(inputs.get("metadata")).get(DOCUMENT_METADATA_KEY))
    return _of_template(as_mapping(inputs.get("template"))) if kind == SERVICE_TYPE else None


def _of_document(text: object) -> dict[str, str] | None:
    document = json_object(text if isinstance(text, str) else "")
    others = {key: value for key, value in document.items() if key not in {"schema", "args", "env", "secretEnv"}}
    return {
        **flags_of([str(argument) for argument in as_sequence(document.get("args"))]),
        **{name: _variable(name, value) for name, value in as_mapping(document.get("env")).items()},
        **{name: str(version) for name, version in as_mapping(document.get("secretEnv")).items()},
        **{key: _spelled(value) for key, value in others.items()},
    } or None


def _of_template(template: Mapping[str, object]) -> dict[str, str] | None:
    container = as_mapping(next(iter(as_sequence(template.get("containers"))), None))
    arguments = as_sequence(container.get("args"))
    # A starter has the server's whole command among its arguments, after the starter's own one, which may be unknown.
    served = arguments[arguments.index(_SERVE) + 1 :] if _SERVE in arguments else arguments
    if not served or not all(isinstance(text, str) for text in served):
        return None
    image = container.get("image")
    variables = _variables(as_sequence(container.get("envs")))
    if not isinstance(image, str) or variables is None:
        return None
    scaling = as_mapping(template.get("scaling"))
    instances = {name: str(scaling[key]).removesuffix(".0") for key, name in _INSTANCES.items() if key in scaling}
    notes = {str(name): str(value) for name, value in as_mapping(template.get("annotations")).items()}
    return {**flags_of(cast("Sequence[str]", served)), **variables, **instances, **notes, IMAGE: image}


def _variables(given: Sequence[object]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for one in map(as_mapping, given):
        name, value = str(one.get("name")), one.get("value", one.get("valueSource"))
        if not isinstance(value, str | Mapping):
            return None
        found[name] = _variable(name, value) if isinstance(value, str) else _secret(as_mapping(cast("object", value)))
    return found


def _secret(source: Mapping[str, object]) -> str:
    """Return where the value of a variable comes from. Its version is unknown until `up` has added it."""
    version = as_mapping(source.get("secretKeyRef")).get("version")
    return f"Secret Manager, version {version}" if isinstance(version, str) else "Secret Manager, a new version"


def _variable(name: str, value: object) -> str:
    """Return the value of an environment variable, without a secret."""
    return masked(f"{name}={_spelled(value)}").removeprefix(f"{name}=")


def _spelled(value: object) -> str:
    return masked(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))


def _shortened(text: str, start: int) -> str:
    shown = text[start : start + _SHOWN_CHARACTERS]
    return f"{'…' if start else ''}{shown}{'…' if start + len(shown) < len(text) else ''}"
