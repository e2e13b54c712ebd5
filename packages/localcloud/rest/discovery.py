"""Google's discovery documents: methods, their paths, parameters and bodies.

The documents are part of google-api-python-client. Each is read on first use; the largest (compute, 5 MB) takes a
fraction of a second.
"""

import json
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, cast
from urllib.parse import unquote

from localcloud.json_values import JsonObject, part
from localcloud.rest.errors import ErrorStyle

VERSIONS: dict[str, dict[str, str]] = {
    "run": {"v2": "run.v2", "v1": "run.v1"},
    "secretmanager": {"v1": "secretmanager.v1"},
    "storage": {"storage/v1": "storage.v1"},
    "artifactregistry": {"v1": "artifactregistry.v1"},
    "iam": {"v1": "iam.v1"},
    "cloudbilling": {"v1": "cloudbilling.v1"},
    "cloudkms": {"v1": "cloudkms.v1"},
    "compute": {"compute/beta": "compute.beta", "compute/v1": "compute.v1"},
    "cloudresourcemanager": {"v1": "cloudresourcemanager.v1", "v3": "cloudresourcemanager.v3"},
    "serviceusage": {"v1": "serviceusage.v1", "v1beta1": "serviceusage.v1beta1"},
    "monitoring": {"v1": "monitoring.v1", "v3": "monitoring.v3"},
    "logging": {"v2": "logging.v2"},
    "oslogin": {"v1": "oslogin.v1", "v1beta": "oslogin.v1beta", "v1alpha": "oslogin.v1alpha"},
    "tpu": {"v2alpha1": "tpu.v2alpha1"},
}
"""API -> path prefix -> discovery document."""
_NO_WILDCARD = 'cannot be the "-" wildcard'
_STYLES = {"compute": ErrorStyle.COMPUTE, "storage": ErrorStyle.STORAGE}
_ONLY: Final = {"run.v1": frozenset({"run.projects.locations.list"})}
"""Documents whose resources differ in form from resources of the modeled version, with the methods that are the same in both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One path or query parameter of a method, as its document describes it."""

    name: str
    location: str
    required: bool
    repeated: bool
    type: str
    format: str | None
    enum: tuple[str, ...]
    pattern: str | None
    minimum: int | None
    maximum: int | None
    refuses_wildcard: bool
    """True if the document's text excludes `-` as location."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: `id` such as `run.projects.locations.services.create`; `request` and `response` name the schemas of its bodies."""

    id: str
    verb: str
    template: str
    parameters: dict[str, Parameter]
    request: str | None
    response: str | None
    binder: re.Pattern[str]
    bound: tuple[tuple[str, bool], ...]
    """Path parameters in order: the name, and whether the value is a single segment."""

    def bind(self, path: str) -> dict[str, str] | None:
        """Return the decoded path parameters of a raw path, or None if the template does not match.

        A parameter `{+name}` keeps an encoded slash, so its segments stay separate (RFC 6570, reserved expansion).
        """
        found = self.binder.fullmatch(path)
        return (
            None
            if found is None
            else {
                name: unquote(value if whole else re.sub("(?i)%2f", "%252F", value))
                for (name, whole), value in zip(self.bound, found.groups(), strict=True)
            }
        )


@dataclass(slots=True)
class _RoutingNode:
    """A node of the routing tree; each level is one path segment."""

    children: dict[str, "_RoutingNode"] = field(default_factory=dict[str, "_RoutingNode"])
    methods: dict[str, list[JsonObject]] = field(default_factory=dict[str, list[JsonObject]])
    """The methods that end here by verb, as the document describes them: of Compute Engine's thousand few are ever called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryDocument:
    """One API version: its schemas, its global parameters and a tree of its paths."""

    api: str
    version: str
    title: str
    style: ErrorStyle
    schemas: dict[str, JsonObject] = field(repr=False)
    global_parameters: frozenset[str] = field(repr=False)
    service_path: str
    root: _RoutingNode = field(repr=False)
    read: dict[str, Method] = field(repr=False, default_factory=dict[str, Method])
    """The methods that were called, by id."""

    @property
    def forgiving_names(self) -> bool:
        """Return whether snake_case names are accepted for camelCase ones, as in protocol-buffer JSON."""
        return self.style is not ErrorStyle.STORAGE

    def method(self, raw: JsonObject) -> Method:
        """Return a method that the document describes."""
        return self.read.get(raw["id"]) or self.read.setdefault(raw["id"], _method(raw, self.service_path))

    def match(self, verb: str, path: str) -> tuple[Method, dict[str, str]] | None:
        """Return the method and the path parameters for a raw path without leading slash, or None if Google answers 404."""
        for node in _walk(self.root, path.rstrip("/").split("/"), 0):
            for raw in node.methods.get(verb, []):
                method = self.method(raw)
                bound = method.bind(path.rstrip("/"))
                if bound is not None:
                    return method, bound
        return None


def document_for(api: str, path: str) -> DiscoveryDocument | None:
    """Return the document for a path without leading slash and API segment, or None."""
    for prefix, name in VERSIONS.get(api, {}).items():
        if path == prefix or path.startswith((f"{prefix}/", f"{prefix}:")):
            return load(name)
    return None


@cache
def load(name: str) -> DiscoveryDocument:
    """Read one document, such as `run.v2`."""
    text = (files("googleapiclient.discovery_cache.documents") / f"{name}.json").read_text(encoding="utf-8")
    raw = cast("JsonObject", json.loads(text))
    root, service_path = _RoutingNode(), str(raw["servicePath"])
    for method in _methods(raw):
        for template in _routes(method, service_path):
            _add(root, template, method)
    api = str(raw["name"])
    return DiscoveryDocument(
        api=api,
        version=str(raw["version"]),
        title=str(raw.get("title", api)),
        style=_STYLES.get(api, ErrorStyle.RPC),
        schemas=raw["schemas"],
        global_parameters=frozenset({*raw["parameters"], "$alt"}),
        service_path=service_path,
        root=root,
    )


def _methods(resource: JsonObject) -> list[JsonObject]:
    found: list[JsonObject] = list(part(resource, "methods").values())
    for child in part(resource, "resources").values():
        found.extend(_methods(child))
    return found


def _method(raw: JsonObject, service_path: str) -> Method:
    template = service_path + str(raw["path"])
    parameters = {name: _parameter(name, value) for name, value in part(raw, "parameters").items()}
    bound = tuple((name, not plus) for plus, name in re.findall(r"\{(\+?)([^}]+)\}", template))
    pieces = re.split(r"(\{\+?[^}]+\})", template)
    pattern = "".join(_piece(piece) for piece in pieces)
    request = raw.get("request")
    return Method(
        id=raw["id"],
        verb=raw["httpMethod"],
        template=template,
        parameters=parameters,
        request=request["$ref"] if request else None,
        response=raw["response"]["$ref"] if "response" in raw else None,
        binder=re.compile(pattern),
        bound=bound,
    )


def _piece(piece: str) -> str:
    if piece.startswith("{+"):
        return "(.+)"
    return "([^/]+)" if piece.startswith("{") else re.escape(piece)


def _parameter(name: str, raw: dict[str, Any]) -> Parameter:
    minimum, maximum = raw.get("minimum"), raw.get("maximum")
    return Parameter(
        name=name,
        location=raw["location"],
        required=bool(raw.get("required")),
        repeated=bool(raw.get("repeated")),
        type=raw["type"],
        format=raw.get("format"),
        enum=tuple(raw.get("enum", ())),
        pattern=raw.get("pattern"),
        minimum=None if minimum is None else int(minimum),
        maximum=None if maximum is None else int(maximum),
        refuses_wildcard=_NO_WILDCARD in str(raw.get("description", "")),
    )


def _routes(raw: JsonObject, service_path: str) -> list[str]:
    """Return the paths with one placeholder per segment: flatPath if the method has one, otherwise `{+name}` expanded by its pattern."""
    flat = raw.get("flatPath")
    if flat is not None:
        return [service_path + str(flat)]
    template = service_path + str(raw["path"])
    for name in re.findall(r"\{\+([^}]+)\}", template):
        pattern = str(raw["parameters"][name].get("pattern", "{p}")).strip("^$")
        template = template.replace("{+" + name + "}", pattern.replace("[^/]+", "{p}"))
    return [template]


def _add(root: _RoutingNode, template: str, method: JsonObject) -> None:
    node = root
    for segment in template.split("/"):
        node = node.children.setdefault(re.sub(r"\{[^}]+\}", "*", segment), _RoutingNode())
    node.methods.setdefault(method["httpMethod"], []).append(method)


def _walk(node: _RoutingNode, segments: list[str], at: int) -> list[_RoutingNode]:
    """Return all nodes that match the segments, the most literal first. `name:verb` ends the path of a custom method."""
    if at == len(segments):
        return [node]
    segment = segments[at]
    keys = [segment, "*"]
    if ":" in segment:
        keys.insert(1, "*:" + segment.rsplit(":", 1)[1])
    found: list[_RoutingNode] = []
    for key in keys:
        child = node.children.get(key)
        if child is not None:
            found.extend(_walk(child, segments, at + 1))
    return found


def has_modelled_form(document: DiscoveryDocument, method: Method) -> bool:
    """Return whether a method's resources have the form of the modeled version."""
    return method.id in _ONLY.get(f"{document.api}.{document.version}", {method.id})
