"""The schema that the stand-in of pulumi-gcp serves: it takes each recorded program of the real provider, and what Check rejects it rejects too."""

import json
from functools import cache

import pytest
from pulumi.runtime.proto import provider_pb2

from localcloud.plugins.docker import IMAGE, DockerProvider
from localcloud.plugins.overlay import OVERLAYS, resource_type
from localcloud.plugins.schema import ValueKind
from localcloud.tests.plugins.harness import declared, is_secret, on_engine

PYTHON = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "array": list, "object": dict}


@cache
def schema():
    async def served(engine):
        return json.loads((await engine.stub.GetSchema(provider_pb2.GetSchemaRequest())).schema)

    return on_engine(lambda _: {}, served)


def named(each):
    return schema()["types"][each["$ref"].removeprefix("#/types/")]


def problems(each, value, at):
    """Yield what Pulumi's type check says of a value: wrong types, unknown keys, missing keys."""
    if is_secret(value):
        value = value["value"]
    kind = named(each) if "$ref" in each else each
    if not isinstance(value, PYTHON[kind["type"]]) or (isinstance(value, bool) and kind["type"] != "boolean"):
        yield at
    elif kind["type"] == "array":
        for index, one in enumerate(value):
            yield from problems(kind["items"], one, f"{at}[{index}]")
    elif "properties" in kind:
        yield from object_problems(kind["properties"], kind["required"], value, at)
    elif kind["type"] == "object":
        for key, one in value.items():
            yield from problems(kind["additionalProperties"], one, f"{at}.{key}")


def object_problems(properties, required, values, at):
    yield from (f"{at}.{key}" for key in required if key not in values)
    for key, value in values.items():
        if key in properties:
            yield from problems(properties[key], value, f"{at}.{key}")
        else:
            yield f"{at}.{key}"


def input_problems(token, inputs):
    found = schema()["resources"][token]
    return list(object_problems(found["inputProperties"], found["requiredInputs"], inputs, token))


def test_it_takes_every_recorded_program_and_no_key_or_type_beside():
    for each in declared().values():
        inputs = {key: value for key, value in each["inputs"].items() if key != "__defaults"}
        assert input_problems(each["type"], inputs) == []
        assert input_problems(each["type"], {**inputs, "misspelled": 1}) == [f"{each['type']}.misspelled"]
        for key in inputs:
            assert input_problems(each["type"], {**inputs, key: object()}) == [f"{each['type']}.{key}"]


def pairs(fields, properties, at):
    """Yield each property with its specification, also those of nested types."""
    for name, spec in fields.items():
        each = properties[name]
        yield f"{at}.{name}", spec, each
        inner, nested = (spec, each) if spec.item is None else (spec.item, each["items"])
        if inner.kind is ValueKind.BLOCK:
            yield from pairs(inner.fields, named(nested)["properties"], f"{at}.{name}")


@pytest.mark.parametrize("token", OVERLAYS)
def test_a_type_has_the_properties_of_its_specification(token):
    fields, found = resource_type(token).fields, schema()["resources"][token]
    assert set(found["properties"]) == set(fields)
    assert set(found["inputProperties"]) == {name for name, each in fields.items() if not each.output}
    assert set(found["requiredInputs"]) == {name for name, each in fields.items() if each.required}
    for path, spec, each in pairs(fields, found["properties"], token):
        assert each.get("secret", False) == spec.secret, path


def test_functions_have_the_arguments_that_they_take(subtests):
    for token, found in schema()["functions"].items():
        with subtests.test(token):

            async def called(engine, token=token):
                await engine.stub.Invoke(provider_pb2.InvokeRequest(tok=token, args={"other": "x"}))

            supported = ", ".join(found["inputs"]["properties"])
            with pytest.raises(Exception, match=f"argument 'other' of {token}. Supported: {supported}"):
                on_engine(lambda _: {}, called)


def test_the_stand_in_of_docker_has_its_image():
    found = DockerProvider(None, token=None).schema()  # type: ignore[arg-type]
    assert found["resources"][IMAGE]["requiredInputs"] == ["imageName"]
    assert "version" not in found["provider"]["inputProperties"], "a schema that names it is invalid"
