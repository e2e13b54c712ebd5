"""Bare Pulumi program with the declarations of a preview: plain `pulumi` and `pulumi_gcp`, no plan, settings or hooks.

It corresponds to a handwritten program with all values known in advance. With the classes of `components.gcp` instead of the SDK's, it is the lower limit
for the cost of a preview of the same resources.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from contracts.resource_types import CAPACITY_TYPE
from engine.deployment import SECRET_SIGNATURE, UNKNOWN

_HEAD: Final = """\
import pulumi
{gcp}
{more}

made = {{}}
"""
_COMPONENT: Final = "gemma-serving:"
_PROVIDER: Final = "pulumi:providers:gcp"
_STACK: Final = "pulumi:pulumi:Stack"
_LATER: Final = "known-after-up"

Step = Mapping[str, Any]


def program(steps: Sequence[Step], *, thin: bool = False) -> str:
    """Return the source of the program for the steps of `pulumi preview --json`; `thin`: with the classes of `components.gcp`."""
    resources = [step["newState"] for step in steps if step["newState"]["type"] != _STACK]
    types = {resource["type"] for resource in resources}
    more = ["from queued_resource import QueuedResource, QueuedResourceArgs"] if CAPACITY_TYPE in types else []
    gcp = "from components import gcp" if thin else "import pulumi_gcp as gcp"
    lines = [_HEAD.format(gcp=gcp, more="\n".join(more))]
    lines += [line for resource in resources for line in _declared(resource, thin=thin)]
    return "\n".join(lines) + "\n"


def _declared(resource: Mapping[str, Any], *, thin: bool) -> Iterator[str]:
    """Yield the statement that declares one resource."""
    type_, urn = resource["type"], resource["urn"]
    name = urn.rpartition("::")[2]
    inputs = {key: _value(value) for key, value in resource.get("inputs", {}).items() if not key.startswith("__")}
    options = f"opts=pulumi.ResourceOptions({', '.join(_options(resource))})"
    if type_.startswith(_COMPONENT):
        yield f"made[{urn!r}] = pulumi.ComponentResource({type_!r}, {name!r}, None, {options})"
        return
    if type_ == CAPACITY_TYPE:
        arguments = ", ".join(f"{_snake_case(key)}={value!r}" for key, value in sorted(inputs.items()))
        yield f"made[{urn!r}] = QueuedResource({name!r}, QueuedResourceArgs({arguments}), {options})"
        return
    if type_ == _PROVIDER:
        inputs.pop("version", None)
        # The engine keeps a provider's settings as JSON texts.
        inputs = {key: json.loads(value) if value in ("true", "false") else value for key, value in inputs.items()}
        if thin:
            del inputs["userProjectOverride"]  # it always sets this
            options = ""
    arguments = ", ".join(f"{_snake_case(key)}={value!r}" for key, value in sorted(inputs.items()))
    class_ = _class(type_)
    given = arguments if type_ == _PROVIDER else f"{class_}Args({arguments})"
    yield f"made[{urn!r}] = {class_}({', '.join(filter(None, (repr(name), given, options)))})"


def _options(resource: Mapping[str, Any]) -> Iterator[str]:
    parent = resource.get("parent", "")
    if parent and f"::{_STACK}::" not in parent:
        yield f"parent=made[{parent!r}]"
    provider = str(resource.get("provider", "")).rpartition("::")[0]
    if provider and "default" not in provider:
        yield f"provider=made[{provider!r}]"
    if resource.get("protect"):
        yield "protect=True"


def _class(type_: str) -> str:
    """Return the SDK's class of a type: `gcp:storage/bucket:Bucket` is `gcp.storage.Bucket`."""
    if type_ == _PROVIDER:
        return "gcp.Provider"
    package, module, name = type_.split(":")
    if package != "gcp":
        raise ValueError(f"no bare declaration exists for the type {type_}")
    return f"gcp.{module.partition('/')[0]}.{name}"


def _value(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return a value that the program can use, with another text where the engine only reports a secret or an unknown value."""
    if isinstance(value, dict):
        entries = cast("Mapping[str, Any]", value)
        return _LATER if SECRET_SIGNATURE[0] in entries else {key: _value(item) for key, item in entries.items()}
    if isinstance(value, list):
        return [_value(item) for item in cast("Sequence[Any]", value)]
    return _LATER if value in (UNKNOWN, "[secret]") else value


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda letter: f"_{letter.group()}", name).lower()
