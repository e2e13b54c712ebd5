"""Check bodies that a test made by hand against Google's discovery documents: Google could have sent them.

A body that no document has would prove nothing: a queued resource, for example, has no labels of its own.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

T = TypeVar("T")
DOCUMENTS = {"tpu": "tpu.v2alpha1", "compute": "compute.v1"}
"""The document of each API that the provider calls."""

_KINDS = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "object": Mapping,
    "array": (list, tuple),
}
_FORMATS = {
    "int64": re.compile(r"-?\d+"),
    "uint64": re.compile(r"\d+"),
    "google-datetime": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z"),
    "google-duration": re.compile(r"-?\d+(\.\d{1,9})?s"),
}


def google_answer(verb: str, path: str, body: T) -> T:
    """Return the body if the method could answer it. `path` begins with the API, such as `tpu/v2alpha1/projects/...`."""
    document, schema = _method(verb, path)[:2]
    assert schema is not None, f"{verb} {path} answers nothing"
    return google_body(document, schema, body)


def google_request(verb: str, path: str, body: T) -> T:
    """Return the body if the method could take it."""
    document, _, schema = _method(verb, path)
    assert schema is not None or not body, f"{verb} {path} takes no body"
    return google_body(document, schema, body) if schema else body


def google_body(document: str, schema: str, body: T) -> T:
    """Return the body if it follows a schema of a document, such as `tpu.v2alpha1` and `QueuedResource`."""
    mistakes = [*_mistakes(document, {"$ref": schema}, body, schema)]
    assert not mistakes, f"Google's document {document} does not allow this: {'; '.join(mistakes)}"
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class _Method:
    """One method of a document: its verb, the paths that it has, and the schemas of its bodies."""

    verb: str
    paths: re.Pattern[str]
    request: str | None
    response: str | None


@cache
def _methods(document: str) -> Sequence[_Method]:
    text = _document(document)
    return [
        _Method(
            verb=method["httpMethod"],
            paths=re.compile(
                text["servicePath"]
                + re.sub(r"\\?\{[^}]*\}", "[^/:]+", re.escape(method.get("flatPath", method["path"])))
            ),
            request=method.get("request", {}).get("$ref"),
            response=method.get("response", {}).get("$ref"),
        )
        for method in _below(text)
    ]


def _below(resource: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from resource.get("methods", {}).values()
    for inner in resource.get("resources", {}).values():
        yield from _below(inner)


def _method(verb: str, path: str) -> tuple[str, str | None, str | None]:
    api, _, rest = path.partition("?")[0].partition("/")
    document = DOCUMENTS[api]
    found = [method for method in _methods(document) if method.verb == verb and method.paths.fullmatch(rest)]
    assert found, f"{verb} {path} is not a method of {document}"
    return document, found[0].response, found[0].request


@cache
def _schemas(document: str) -> Mapping[str, Any]:
    return _document(document)["schemas"]


@cache
def _document(name: str) -> Mapping[str, Any]:
    text = (files("googleapiclient.discovery_cache.documents") / f"{name}.json").read_text(encoding="utf-8")
    return json.loads(text)


def _mistakes(document: str, schema: Mapping[str, Any], value: object, at: str) -> Iterator[str]:
    described = _schemas(document)[schema["$ref"]] if "$ref" in schema else schema
    kind = described.get("type", "any")
    if kind == "any":
        return
    if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind in {"integer", "number"}):
        yield f"{at} is {value!r}, not of type {kind}"
    elif isinstance(value, Mapping):
        yield from _fields(document, described, value, at)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _mistakes(document, described.get("items", {}), item, f"{at}[{index}]")
    elif isinstance(value, str):
        yield from _text(described, value, at)


def _fields(document: str, described: Mapping[str, Any], value: Mapping[str, Any], at: str) -> Iterator[str]:
    known, others = described.get("properties", {}), described.get("additionalProperties")
    for name, item in value.items():
        if name in known or others is not None:
            yield from _mistakes(document, known.get(name, others), item, f"{at}.{name}")
        else:
            yield f"{at} has no field {name}"


def _text(described: Mapping[str, Any], value: str, at: str) -> Iterator[str]:
    if "enum" in described and value not in described["enum"]:
        yield f"{at} is {value!r}, which is none of its values"
    pattern = _FORMATS.get(described.get("format", ""))
    if pattern is not None and pattern.fullmatch(value) is None:
        yield f"{at} is {value!r}, not a {described['format']}"
