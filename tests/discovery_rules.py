"""The rules that Google's discovery documents state in words, for the methods that the project calls.

The methods: what the recorded requests of the real `gcp` provider call, what the TPU provider's client calls, what the scripts list,
and what the programs with Google's own clients call.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

from gcp_tpu_provider.tpu_api import OwnCapacity, TpuApi
from gemma_serving.cloud.google_api import GoogleApi
from gemma_serving.cloud.grants import holder_of
from gemma_serving.cloud.kinds import KINDS, LOCATIONS, POLICIES
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.proof import Asker, Proof
from localcloud.rest.discovery import document_for

ORACLE = Path(__file__).parents[1] / "packages" / "localcloud" / "tests" / "fixtures" / "oracle"
RECORDINGS = ("create", "update", "delete")
NOT_DECLARED = ("logging",)
"""The recordings have resources of these APIs too; no component declares one."""
WITH_GOOGLES_CLIENTS = {
    # scripts.stage_model
    ("storage.v1", "storage.buckets.get"),
    ("storage.v1", "storage.objects.compose"),
    ("storage.v1", "storage.objects.delete"),
    ("storage.v1", "storage.objects.insert"),
    ("storage.v1", "storage.objects.list"),
    ("storage.v1", "storage.objects.rewrite"),
    # the agent on the TPU VM
    ("secretmanager.v1", "secretmanager.projects.secrets.versions.access"),
    ("storage.v1", "storage.objects.get"),
    # dev.authors.demo, to see the machines and requests
    ("tpu.v2alpha1", "tpu.projects.locations.queuedResources.list"),
    ("tpu.v2alpha1", "tpu.projects.locations.nodes.list"),
}
HELD = {"project": "p", "bucket": "b", "secretId": "s", "location": "l", "repository": "r", "name": "n"} | {
    "serviceAccountId": "projects/p/serviceAccounts/a@p.iam.gserviceaccount.com"
}
"""Inputs of a grant of each type."""
HOLDERS = [holder_of(type_, HELD, "other") for type_ in POLICIES]
RULE = re.compile(
    r"\b(must|cannot|can't|can not|may not|only if|only be|can only|may only|not supported|not allowed|required|exactly one|"
    r"mutually exclusive|both inclusive|can either be one of|only the value .text)\b",
    re.IGNORECASE,
)
_STATED_BY_STRUCTURE = re.compile(r"^required[.:]?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Call:
    """One method: its document such as `run.v2`, its id, and the query parameters and bodies that were recorded."""

    document: str
    id: str
    parameters: frozenset[str]
    bodies: tuple[Mapping[str, Any], ...]


class _Listening:
    """A transport that notes the calls and answers with the name that was asked for."""

    def __init__(self) -> None:
        self.called: list[tuple[str, str, Mapping[str, str]]] = []

    async def call(self, method, path, *, query=None, body=None, creation=False):
        self.called.append((method, path, query or {}))
        return {"name": path}


class _Session:
    """A session that notes the requests and answers with a policy's etag."""

    def __init__(self) -> None:
        self.called: list[tuple[str, str]] = []

    def request(self, verb, url, **_):
        self.called.append((verb, url))
        return nullcontext(SimpleNamespace(ok=True, headers={}, iter_content=lambda _size: (b'{"etag": "e"}',)))


def _of_the_provider() -> Iterator[tuple[str, str, Mapping[str, str], None]]:
    transport = _Listening()
    api = TpuApi(transport)
    zone = "projects/p/locations/us-east5-a"
    queued, node, operation = f"{zone}/queuedResources/q", f"{zone}/nodes/n", f"{zone}/operations/o"

    async def all_calls():
        await api.create_queued_resource(queued, {}, "id")
        await api.find_queued_resource(queued)
        await api.delete_queued_resource(OwnCapacity(queued), force=True, request_id="id")
        await api.find_node(node)
        await api.patch_node(node, {}, "labels")
        await api.find_guest_report(node, "space")
        await api.get_operation(operation)

    asyncio.run(all_calls())
    for method, path, query in transport.called:
        yield method, f"tpu/{path}", query, None


def _of_the_recordings() -> Iterator[tuple[str, str, Mapping[str, str], Any]]:
    lines = [json.loads(line) for name in RECORDINGS for line in (ORACLE / f"{name}.jsonl").read_text().splitlines()]
    more = [json.loads(line) for line in (ORACLE / "more.jsonl").read_text().splitlines()]
    requests = [line["request"] for line in lines] + [request for line in more for request in line.get("requests", [])]
    for request in requests:
        path = request["path"].lstrip("/").removeprefix("upload/")
        yield request["method"], path, request.get("query") or {}, request.get("body")


def _of_the_scripts() -> Iterator[tuple[str, str, Mapping[str, str], None]]:
    """What a search lists and reads, and what a teardown deletes."""
    for api, path in LOCATIONS.items():
        yield "GET", f"{api}/{path.format(p='p').partition('?')[0]}", {}, None
    for kind in KINDS:
        listed = kind.path.format(p="p", l="us-east5-a")
        yield "GET", f"{kind.api}/{listed.partition('?')[0]}", {}, None
        scope = "zones/us-east5-a/" if kind.items == "instances" else "regions/us-east5/"
        plain = listed.partition("?")[0].removeprefix(kind.prefix).replace("aggregated/", scope)
        for verb, query in (("GET", {}), ("DELETE", kind.deletion({}))):
            yield verb, f"{kind.api}/{kind.address(f'{plain}/x')}", query, None
    session = _Session()
    owner = Ownership(project="p", stack="x")
    proof = Proof(claim="a test's", source="none", owners={"x": owner})
    for holder in HOLDERS:  # the provider writes the policies of a stack's own resources
        holder.read(GoogleApi(session, ()))
        holder.write(GoogleApi(session, ()), {}, proof, Asker(project="p", stack="x"))
    for verb, url in session.called:
        host, _, path = url.removeprefix("https://").partition("/")
        path, _, query = path.partition("?")
        yield verb, f"{host.partition('.')[0]}/{path}", dict(parse_qsl(query)), None


@cache
def calls() -> tuple[Call, ...]:
    """Every method that the project calls, by document and id."""
    found: dict[tuple[str, str], tuple[set[str], list[Any]]] = {key: (set(), []) for key in WITH_GOOGLES_CLIENTS}
    for method, path, query, body in (*_of_the_recordings(), *_of_the_provider(), *_of_the_scripts()):
        api, _, rest = path.partition("/")
        if path.startswith("storage/v1"):  # an upload: its path has no API in front
            api, rest = "storage", path
        document = document_for(api, rest)
        assert document is not None, path
        matched = document.match(method, rest)
        assert matched is not None, (method, path)
        if api not in NOT_DECLARED:
            names, bodies = found.setdefault((f"{document.api}.{document.version}", matched[0].id), (set(), []))
            names.update(query)
            if isinstance(body, dict):
                bodies.append(body)
    return tuple(Call(*key, frozenset(names), tuple(bodies)) for key, (names, bodies) in sorted(found.items()))


@cache
def raw(document: str) -> dict[str, Any]:
    text = (files("googleapiclient.discovery_cache.documents") / f"{document}.json").read_text(encoding="utf-8")
    return json.loads(text)


@cache
def methods(document: str) -> dict[str, dict[str, Any]]:
    def of(resource: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        yield from resource.get("methods", {}).values()
        for child in resource.get("resources", {}).values():
            yield from of(child)

    return {method["id"]: method for method in of(raw(document))}


def sentences(text: str) -> list[str]:
    """The sentences of a description that state a rule; a line break inside a paragraph is a space."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n|\n\s*[-*+]\s", text):
        parts = re.split(r"(?<=[.!?])\s+(?=[A-Z`\"*\[(])", " ".join(paragraph.split()))
        while parts:
            sentence = parts.pop(0)
            if re.fullmatch(r"required[.:]?", sentence, re.IGNORECASE) and parts:
                sentence = f"{sentence} {parts.pop(0)}"
            found.append(sentence)
    return [sentence for sentence in found if RULE.search(sentence)]


def described(call: Call) -> Iterator[tuple[str, str]]:
    """(place, description) of a method, its parameters and all fields of its request; output-only fields say nothing about requests."""
    method = methods(call.document)[call.id]
    yield f"{call.document} {call.id}", method.get("description", "")
    for name, parameter in method.get("parameters", {}).items():
        text = parameter.get("description", "")
        if parameter.get("required"):  # the router and the check of parameters refuse a request without it
            text = _STATED_BY_STRUCTURE.sub("", text)
        yield f"{call.document} {call.id}?{name}", text
    if "request" in method:
        yield from _schema(call.document, method["request"]["$ref"], set())


def _schema(document: str, name: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    if name not in seen:
        seen.add(name)
        schema = raw(document)["schemas"][name]
        yield f"{document} {name}", schema.get("description", "")
        yield from _fields(document, name, schema, seen)


def _fields(document: str, path: str, schema: Mapping[str, Any], seen: set[str]) -> Iterator[tuple[str, str]]:
    for name, field in schema.get("properties", {}).items():
        text = field.get("description", "")
        if field.get("readOnly") or re.match(r"\[?output only", text, re.IGNORECASE):
            continue
        yield f"{document} {path}.{name}", text
        for text in field.get("enumDescriptions", ()):
            yield f"{document} {path}.{name}", text
        yield from _below(document, f"{path}.{name}", field, seen)


def _below(document: str, path: str, field: Mapping[str, Any], seen: set[str]) -> Iterator[tuple[str, str]]:
    if "$ref" in field:
        yield from _schema(document, field["$ref"], seen)
    for inner in (field.get("items"), field.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from _below(document, path, inner, seen)
    yield from _fields(document, path, field, seen)


@cache
def rules() -> dict[str, tuple[str, ...]]:
    """Every sentence that states a rule, with the places where it stands."""
    found: dict[str, list[str]] = {}
    for call in calls():
        for place, text in described(call):
            for sentence in sentences(text):
                places = found.setdefault(sentence, [])
                if place not in places:
                    places.append(place)
    return {sentence: tuple(places) for sentence, places in found.items()}


def sent() -> set[str]:
    """The parameters and fields that the recorded requests send with a value, written as in `described`."""
    found: set[str] = set()
    for call in calls():
        method = methods(call.document)[call.id]
        found |= {f"{call.document} {call.id}?{name}" for name in call.parameters}
        for body in call.bodies:
            if "request" in method:
                found |= sent_in(call.document, method["request"]["$ref"], body)
    return found


def sent_in(document: str, schema: str, body: Mapping[str, Any]) -> set[str]:
    """The fields that a body sends with a value, written as in `described`."""
    found: set[str] = set()
    _send(document, schema, raw(document)["schemas"][schema], body, found)
    return found


def _send(document: str, path: str, schema: Mapping[str, Any], value: Any, found: set[str]) -> None:
    if "$ref" in schema:
        path = schema["$ref"]
        schema = raw(document)["schemas"][path]
    if isinstance(value, list):
        for item in value:
            _send(document, path, schema.get("items", {}), item, found)
        return
    if not isinstance(value, dict):
        return
    for name, item in value.items():
        field = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        if isinstance(field, dict) and item not in (None, [], {}, ""):
            if name in schema.get("properties", {}):
                found.add(f"{document} {path}.{name}")
            _send(document, f"{path}.{name}", field, item, found)
