"""The specifications against the pulumi_gcp SDK: names, kinds and requiredness are the SDK's, so a program finds what it expects."""

import importlib
import inspect
import re
from functools import cache
from typing import Any

import pulumi_docker
import pulumi_gcp
from pulumi.runtime.rpc import _special_sig_key

from localcloud.plugins import facts
from localcloud.plugins.docker import IMAGE, IMAGE_FIELDS
from localcloud.plugins.overlay import resource_type
from localcloud.plugins.schema import PropertySpec, PropertySpecs, ValueKind
from localcloud.tests.plugins.harness import SIGNATURE

# Pulumi's own: other kinds.
OTHER_KIND = {("gcp:secretmanager/secretVersion:SecretVersion", "secretDataWoVersion")}
# Properties that Check adds for itself.
OURS = {("docker:index/image:Image", "build.contextDigest")}


def test_the_wire_signature_is_pulumis():
    assert _special_sig_key == SIGNATURE


@cache
def resource_class(type_name: str) -> Any:
    package, module, name = type_name.split(":")
    module = module.split("/", maxsplit=1)[0]
    if package == "docker":
        return getattr(pulumi_docker, name)
    return getattr(importlib.import_module(f"pulumi_gcp.{module}"), name)


def wire_names(owner: type) -> dict[str, str]:
    """Python names of properties and their names on the wire."""
    return {
        name: getattr(each.fget, "_pulumi_name", name)
        for name, each in inspect.getmembers(owner, lambda each: isinstance(each, property))
    }


def arguments(owner: type) -> dict[str, tuple[str, bool]]:
    """Wire names of an arguments class, with annotation and requiredness."""
    names = wire_names(owner)
    parameters = inspect.signature(owner.__init__).parameters
    return {
        names[name]: (str(each.annotation), each.default is inspect.Parameter.empty)
        for name, each in parameters.items()
        if name in names
    }


def arguments_class(type_name: str) -> type:
    owner = resource_class(type_name)
    return getattr(importlib.import_module(owner.__module__), f"{owner.__name__}Args")


def nested_class(type_name: str, annotation: str) -> type | None:
    found = re.search(r"ForwardRef\('(\w+Args)'\)", annotation)
    if found is None:
        return None
    module = resource_class(type_name).__module__.rpartition(".")[0]
    return getattr(importlib.import_module(f"{module}._inputs"), found.group(1))


def sdk_kind(annotation: str) -> set[ValueKind]:
    head = annotation.split("Awaitable", maxsplit=1)[0]
    if "Sequence" in head:
        return {ValueKind.LIST, ValueKind.SET}
    if "Mapping" in head:
        return {ValueKind.TEXTS_BY_KEY}
    if "ForwardRef('Output" not in head and "ForwardRef" in head and "Args'" in head:
        return {ValueKind.BLOCK}
    if "bool" in head:
        return {ValueKind.FLAG}
    if "int" in re.findall(r"\w+", head):
        return {ValueKind.WHOLE}
    return {ValueKind.NUMBER} if "float" in head else {ValueKind.TEXT}


def disagreements(type_name: str, fields: PropertySpecs, owner: type, at: str = "") -> list[str]:
    known = arguments(owner)
    wrong = []
    for name, each in fields.items():
        path = f"{at}{name}"
        if each.output or (type_name, path) in OURS:
            continue
        if name not in known:
            wrong.append(f"{path}: the SDK has no such property")
            continue
        annotation, required = known[name]
        if each.kind not in sdk_kind(annotation) and (type_name, path) not in OTHER_KIND:
            wrong.append(f"{path}: {each.kind} here, {annotation} in the SDK")
        if each.required != required:
            wrong.append(f"{path}: required {each.required} here, {required} in the SDK")
        inner: PropertySpec | None = each if each.kind is ValueKind.BLOCK else each.item
        nested = nested_class(type_name, annotation)
        if inner is not None and inner.kind is ValueKind.BLOCK and nested is not None:
            wrong += disagreements(type_name, inner.fields, nested, f"{path}.")
    wrong += [
        f"{at}{name}: required in the SDK, unknown here"
        for name, (_, required) in known.items()
        if required and name not in fields
    ]
    return wrong


ENTRIES = {**{name: resource_type(name).fields for name in facts.types()}, IMAGE: IMAGE_FIELDS}


def test_properties_have_the_sdks_names_kinds_and_requiredness(subtests):
    for type_name in sorted(ENTRIES):
        with subtests.test(type_name):
            assert disagreements(type_name, ENTRIES[type_name], arguments_class(type_name)) == []


def test_every_output_of_the_sdk_is_known_so_that_a_preview_never_shows_none_for_it(subtests):
    for type_name in sorted(ENTRIES):
        with subtests.test(type_name):
            base = set(wire_names(resource_class(type_name)).values()) - {
                "id",
                "urn",
                "pulumi_resource_name",
                "pulumi_resource_type",
            }
            inputs = set(arguments(arguments_class(type_name)))
            assert base - inputs <= set(ENTRIES[type_name])


def test_the_version_that_is_stood_in_for_is_the_sdks():
    from importlib.metadata import version  # noqa: PLC0415 - used here only

    from localcloud.plugins import docker, gcp  # noqa: PLC0415 - used here only

    assert version(pulumi_gcp.__name__.replace("_", "-")) == gcp.VERSION
    assert version("pulumi-docker") == docker.VERSION
