"""Responses for older versions of an API: the same resources, with the fields of the caller's version."""

from typing import Any, Final, cast

from localcloud.json_values import JsonObject, part
from localcloud.rest.discovery import DiscoveryDocument, Method

_OTHER_FORM: Final = {"run.v1": frozenset({"run.projects.locations.list"})}
"""Documents whose resources have a different form than in other versions, with the methods that are the same in all versions."""
_MODELLED: Final = {"tpu": "v2alpha1"}
"""API -> the version that the service's model implements. Other APIs answer with the fields that all their versions share."""


def handler_id(document: DiscoveryDocument, method: Method) -> str:
    """Return the id of a method's handler: the method's own, or `API.VERSION.METHOD` if the version has a different form."""
    shared = _OTHER_FORM.get(f"{document.api}.{document.version}")
    if shared is None or method.id in shared:
        return method.id
    api, _, rest = method.id.partition(".")
    return f"{api}.{document.version}.{rest}"


def in_version(document: DiscoveryDocument, method: Method, answer: JsonObject) -> JsonObject:
    """Convert a response of a service's model to the document's version."""
    modelled = _MODELLED.get(document.api, document.version)
    if document.version == modelled or method.response is None:
        return answer
    if method.response == "Operation":
        return _operation(document, modelled, answer)
    return cast("JsonObject", _fields(document, {"$ref": method.response}, answer))


def _operation(document: DiscoveryDocument, modelled: str, answer: JsonObject) -> JsonObject:
    operation = dict(answer)
    if "metadata" in answer:
        metadata = part(answer, "metadata")
        kind = str(metadata.get("@type", "")).replace(f".{modelled}.", f".{document.version}.")
        operation["metadata"] = {**metadata, "@type": kind, "apiVersion": document.version}
    response = part(answer, "response")
    kind = str(response.get("@type", ""))
    schema = kind.rpartition(".")[2]
    if schema in document.schemas:
        fields = cast("JsonObject", _fields(document, {"$ref": schema}, response))
        operation["response"] = {**fields, "@type": kind.replace(f".{modelled}.", f".{document.version}.")}
    return operation


def _fields(document: DiscoveryDocument, schema: JsonObject, value: object) -> object:
    """Return the value without the fields and enum values that the version lacks."""
    described: JsonObject = document.schemas[schema["$ref"]] if "$ref" in schema else schema
    if isinstance(value, list):
        return [_fields(document, part(described, "items"), item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict) or "properties" not in described:
        return cast("object", value)
    properties: JsonObject = part(described, "properties")
    return {
        name: _fields(document, properties[name], item)
        for name, item in cast("JsonObject", value).items()
        if name in properties and ("enum" not in properties[name] or item in properties[name]["enum"])
    }
