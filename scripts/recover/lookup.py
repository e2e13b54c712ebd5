"""Look up every resource type that a stack creates: its Pulumi id and its owner. `cloud.kinds` has the API of each type.

Ids match those that the providers write into the state: provider `gcp` 10.2 (pulumi-gcp's schema and recorded states) and our `gcp-tpu`.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias

from cloud.capacity import NO_SUCH_PLACE, capacity_kind, capacity_names, urn_marks
from cloud.google_api import GoogleApi, GoogleListError, answer_of
from cloud.kinds import (
    BUCKET,
    BY_TYPE,
    INSTANCE,
    POLICIES,
    PolicyOf,
    ResourceKind,
    bindings_of,
    last_segments,
    members_of,
)
from contracts.answers import Absent, Answer, Present, Unknown
from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence
from contracts.labels import URN_DIGITS, Ownership
from contracts.parallel import each
from contracts.resource_types import CAPACITY_TYPE
from engine.deployment import UNKNOWN

_ZONES_AT_ONCE: Final = 8

Json: TypeAlias = Mapping[str, object]


class Owner(Enum):
    """Ownership of a resource."""

    OWNED = "owned"
    NOT_OWNED = "not owned"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """Its API is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Lookup result of one resource. `id`: Pulumi's id. `outputs`: outputs that a refresh needs and that are not inputs."""

    owner: Owner
    name: str
    id: str = ""
    outputs: Json = field(default_factory=dict[str, object])
    api_off: str = ""
    """The API that is off, if that makes the result unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """API session and the owner to look for."""

    api: GoogleApi
    owner: Ownership

    def get(self, api: str, path: str) -> Answer[Json]:
        """Return the response to a GET. Raises ScriptError if it is unknown for another reason than an API that is off."""
        return _looked_up(answer_of(api, lambda: self.api.get(api, path)), path)

    def post(self, api: str, path: str, body: Json) -> Answer[Json]:
        """Return the response to a read-only POST, as `get` does."""
        return _looked_up(answer_of(api, lambda: self.api.post(api, path, body)), path)

    def owns(self, body: Json) -> bool:
        """Return whether the labels or the description name the stack."""
        return self.owner.owns(labels=as_mapping(body.get("labels")), description=str(body.get("description") or ""))

    def whose(self, answer: Answer[Json], *, name: str, resource_id: str) -> Found:
        """Return the result for a resource with labels or a description."""
        match answer:
            case Present(value=body):
                owner = Owner.OWNED if self.owns(body) else Owner.NOT_OWNED
                return Found(owner=owner, name=name, id=resource_id, outputs=_labels(body))
            case Absent() | Unknown():
                return not_found(answer, name)


def not_found(answer: Absent | Unknown, name: str) -> Found:
    """Return the result for a resource that is missing or unknown."""
    match answer:
        case Absent():
            return Found(owner=Owner.MISSING, name=name)
        case Unknown(service=service):
            return Found(owner=Owner.UNKNOWN, name=name, api_off=service)


Lookup: TypeAlias = Callable[[Search, str, Json], Found]
"""Looks up one resource by its URN and inputs. All inputs of `AdoptableKind.needs` are known."""


class AdoptableKind(NamedTuple):
    """A resource type that recover can import. `needs`: the inputs that identify a resource."""

    noun: str
    needs: tuple[str, ...]
    lookup: Lookup


def lookup(search: Search, type_: str, urn: str, inputs: Json) -> Found | None:
    """Look up a resource. Return None if its type is not supported or a value that identifies it is not resolved yet."""
    kind = KINDS.get(type_)
    if kind is None or not all(is_known(inputs.get(name)) and inputs.get(name) for name in kind.needs):
        return None
    return kind.lookup(search, urn, inputs)


def is_known(value: object) -> bool:
    """Return whether a value of a preview is known, including all nested values."""
    if isinstance(value, str):
        return UNKNOWN not in value
    if as_mapping(value):
        return all(is_known(item) for item in as_mapping(value).values())
    return all(is_known(item) for item in as_sequence(value))


def _looked_up(answer: Answer[Json], path: str) -> Answer[Json]:
    """Return the answer if it yields a result. Raises ScriptError otherwise."""
    match answer:
        case Present() | Absent() | Unknown(cause="api off"):
            return answer
        case Unknown(why=why):
            raise ScriptError(f"Could not look up {path.partition('?')[0]}: {why}")


def _labels(body: Json) -> Json:
    """Return the provider's record of labels. Without it, a refresh treats the provider's attribution label as foreign."""
    labels = as_mapping(body.get("labels"))
    return {"effectiveLabels": dict(labels), "pulumiLabels": dict(labels)} if labels else {}


def _named(kind: ResourceKind) -> Lookup:
    """Return the lookup of a resource whose name is its id."""

    def find(search: Search, _urn: str, inputs: Json) -> Found:
        name = _filled(kind.id, inputs)
        return search.whose(search.get(kind.api, kind.address(name)), name=name, resource_id=name)

    return find


def _titled(kind: ResourceKind, title: Callable[[Json], object]) -> Lookup:
    """Return the lookup of a resource that Google names: the stack's own with the same title."""

    def find(search: Search, _urn: str, inputs: Json) -> Found:
        path, wanted = kind.path.format(p=inputs["project"]), title(inputs)
        answer = _looked_up(answer_of(kind.api, lambda: _listed(search, kind, path)), path)
        match answer:
            case Absent() | Unknown():
                return not_found(answer, f"{kind.kind} {wanted}")
            case Present(value=body):
                items = map(as_mapping, as_sequence(body["items"]))
        for item in items:
            owner = kind.owner(item)
            if owner is not None and owner.identity == search.owner.identity and item.get("displayName") == wanted:
                name = kind.name(item)
                return Found(owner=Owner.OWNED, name=name, id=name)
        return Found(owner=Owner.MISSING, name=f"{kind.kind} {wanted}")

    return find


def _listed(search: Search, kind: ResourceKind, path: str) -> Json:
    """Return all pages of a list as one. Raises GoogleListError."""
    return {"items": [item for page in search.api.pages(kind.api, path) for item in as_sequence(page.get(kind.items))]}


def _own_title(inputs: Json) -> object:
    return inputs.get("displayName")


def _dashboard_title(inputs: Json) -> object:
    return as_mapping(json.loads(str(inputs["dashboardJson"]))).get("displayName")


def _filled(template: str, inputs: Json) -> str:
    """Fill a name template with the inputs, using the last segment of a path. Raises ScriptError if one is missing."""
    try:
        return template.format_map(last_segments(inputs))
    except KeyError as missing:
        raise _lacks(missing.args[0]) from None


def _lacks(key: str) -> ScriptError:
    return ScriptError(f"Cannot look up a resource because it has no input {key}.")


def _bucket(search: Search, _urn: str, inputs: Json) -> Found:
    name = str(inputs["name"])
    answer = answer_of("storage", lambda: search.api.get("storage", f"storage/v1/b/{name}"))
    match answer:
        case Unknown(cause="denied"):
            # Bucket names are globally unique, so this one is in another owner's project.
            return Found(owner=Owner.NOT_OWNED, name=f"gs://{name}")
        case Present() | Absent() | Unknown():
            return search.whose(_looked_up(answer, name), name=f"gs://{name}", resource_id=name)


def _nat(search: Search, _urn: str, inputs: Json) -> Found:
    router = _filled("projects/{project}/regions/{region}/routers/{router}", inputs)
    name = f"{router}/nats/{inputs['name']}"
    answer = search.get("compute", f"compute/v1/{router}")
    match answer:
        case Absent() | Unknown():
            return not_found(answer, name)
        case Present(value=body):
            nats = [as_mapping(nat) for nat in as_sequence(body.get("nats"))]
    if not any(nat.get("name") == inputs["name"] for nat in nats):
        return Found(owner=Owner.MISSING, name=name)
    owner = Owner.OWNED if search.owns(body) else Owner.NOT_OWNED
    return Found(owner=owner, name=name, id=_filled("{project}/{region}/{router}/{name}", inputs))


def _secret_version(search: Search, _urn: str, inputs: Json) -> Found:
    """Look up the newest enabled version of a secret. Google chooses its number, and it has the owner of the secret."""
    secret = str(inputs["secret"])
    answer = search.get("secretmanager", f"v1/{secret}")
    match answer:
        case Absent() | Unknown():
            return not_found(answer, f"{secret}/versions")
        case Present(value=body):
            listed = search.get("secretmanager", f"v1/{secret}/versions?pageSize=100")
    match listed:
        case Absent() | Unknown():
            return not_found(listed, f"{secret}/versions")
        case Present(value=page):
            versions = [as_mapping(item) for item in as_sequence(page.get("versions"))]
    names = [str(version.get("name")) for version in versions if version.get("state") == "ENABLED"]
    if not names:
        return Found(owner=Owner.MISSING, name=f"{secret}/versions")
    newest = max(names, key=lambda name: int(name.rpartition("/")[2]))
    number = newest.rpartition("/")[2]
    owner = Owner.OWNED if search.owns(body) else Owner.NOT_OWNED
    outputs = {"name": newest, "version": number}
    return Found(owner=owner, name=f"{secret}/versions/{number}", id=newest, outputs=outputs)


def _grant(of: PolicyOf) -> Lookup:
    """Return the lookup of one member's grant. Resource, role, member and condition identify it; it has no other owner."""

    def find(search: Search, _urn: str, inputs: Json) -> Found:
        try:
            name = of.name_of(inputs)
        except KeyError as missing:
            raise _lacks(missing.args[0]) from None
        call = of.read(name)
        answer = search.get(of.api, call.path) if call.body is None else search.post(of.api, call.path, call.body)
        role, member, condition = inputs["role"], inputs["member"], as_mapping(inputs.get("condition"))
        match answer:
            case Absent() | Unknown():
                return not_found(answer, f"{role} for {member} on {name}")
            case Present(value=policy):
                bindings = bindings_of(policy)
        granted = any(
            binding.get("role") == role
            and member in members_of(binding)
            and _same_condition(as_mapping(binding.get("condition")), condition)
            for binding in bindings
        )
        title = f"/{condition['title']}" if condition.get("title") else ""
        return Found(
            owner=Owner.OWNED if granted else Owner.MISSING,
            name=f"{role} for {member} on {name}",
            id=f"{of.id.format(name=name)}/{role}/{member}{title}",
        )

    return find


def _same_condition(found: Json, wanted: Json) -> bool:
    return all((found.get(key) or "") == (wanted.get(key) or "") for key in ("title", "expression"))


def _queued_resource(search: Search, urn: str, inputs: Json) -> Found:
    """Look up the capacity that our provider created under this id, or the id of a renewal, in every zone.

    It is owned if its labels have the hash of the URN. If two exist, the first is recorded and the next `pulumi up` searches for the other.
    """
    project, identifier = str(inputs["project"]), str(inputs["queuedResourceId"])
    stateless = f"projects/{project}/queuedResources/{identifier}"
    wanted = [str(zone) for zone in as_sequence(inputs.get("zones"))]
    if capacity_kind(inputs) == INSTANCE:
        answer = answer_of("compute", lambda: list(_instances(search, project, identifier)))
    else:
        answer = answer_of("tpu", lambda: _queued(search, inputs, wanted))
    match answer:
        case Unknown(why=why, cause=cause) if cause != "api off":
            raise ScriptError(f"Could not look up {stateless}: {why}")
        case Absent() | Unknown():
            return not_found(answer, stateless)
        case Present(value=existing):
            pass
    mark = hashlib.sha256(urn.encode()).hexdigest()[:URN_DIGITS]
    owned = [name for name, body in existing if mark in urn_marks(body)]
    if owned:
        zone = owned[0].split("/")[3]
        outputs = {"name": owned[0], "zone": zone, "state": "UNKNOWN", "stateHistory": list[object]()}
        return Found(owner=Owner.OWNED, name=" and ".join(owned), id=stateless, outputs=outputs)
    others = [name for name, _ in existing if name.split("/")[3] in wanted and name.endswith(f"/{identifier}")]
    if others:
        return Found(owner=Owner.NOT_OWNED, name=" and ".join(others))
    return Found(owner=Owner.MISSING, name=stateless)


def _instances(search: Search, project: str, identifier: str) -> Iterator[tuple[str, Json]]:
    """Yield the instances of this name with their full names, from one list of all zones. Raises GoogleListError and ScriptError."""
    path = f"compute/v1/projects/{project}/aggregated/instances?filter=name%3D{identifier}"
    for page in search.api.pages("compute", path):
        for scope, found in as_mapping(page.get("items")).items():
            for item in as_sequence(as_mapping(found).get("instances")):
                yield f"projects/{project}/{scope}/instances/{identifier}", as_mapping(item)


def _queued(search: Search, inputs: Json, wanted: Sequence[str]) -> Sequence[tuple[str, Json]]:
    """Return the queued resources of this id in all zones. Raises GoogleListError and ScriptError."""
    zones = {*wanted}
    for page in search.api.pages("tpu", f"v2alpha1/projects/{inputs['project']}/locations"):
        zones |= {str(as_mapping(item).get("locationId")) for item in as_sequence(page.get("locations"))}
    names = capacity_names(inputs, sorted(zones))
    bodies = each([partial(_in_zone, search, name) for name in names], workers=_ZONES_AT_ONCE)
    return [(name, body) for name, body in zip(names, bodies, strict=True) if body is not None]


def _in_zone(search: Search, name: str) -> Json | None:
    """Return the queued resource; None if it does not exist or the project has no access to the zone.

    Raises GoogleListError for an API that is off, and ScriptError.
    """
    try:
        return search.api.get("tpu", f"v2alpha1/{name}")
    except GoogleListError as error:
        if error.status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
            return None
        if error.status == HTTPStatus.FORBIDDEN and NO_SUCH_PLACE in str(error):
            return None
        if error.is_api_off:
            raise
        raise ScriptError(f"Could not look up {name}: Google returned {error.status}: {error}") from None


_MEMBER: Final = ("role", "member")

KINDS: Final[Mapping[str, AdoptableKind]] = {
    **{type_: AdoptableKind(kind.kind, kind.needs, _named(kind)) for type_, kind in BY_TYPE.items()},
    "gcp:storage/bucket:Bucket": AdoptableKind(BUCKET, ("name",), _bucket),
    "gcp:compute/routerNat:RouterNat": AdoptableKind("NAT", ("project", "region", "name", "router"), _nat),
    "gcp:secretmanager/secretVersion:SecretVersion": AdoptableKind("secret version", ("secret",), _secret_version),
    **{type_: AdoptableKind(of.noun, (*of.needs, *_MEMBER), _grant(of)) for type_, of in POLICIES.items()},
    **{
        type_: AdoptableKind(BY_TYPE[type_].kind, ("project", needed), _titled(BY_TYPE[type_], title))
        for type_, needed, title in (
            ("gcp:monitoring/alertPolicy:AlertPolicy", "displayName", _own_title),
            ("gcp:monitoring/notificationChannel:NotificationChannel", "displayName", _own_title),
            ("gcp:monitoring/dashboard:Dashboard", "dashboardJson", _dashboard_title),
        )
    },
    CAPACITY_TYPE: AdoptableKind("queued resource", ("project", "queuedResourceId", "zones"), _queued_resource),
}
"""Types that recover can import."""
REPEATABLE: Final = frozenset({"docker:index/image:Image", "gcp:projects/serviceIdentity:ServiceIdentity"})
"""Types that can be created again without a conflict and that leave no resource behind.

An image is pushed again under the same digest. A service identity is Google's account of an API: generating it again returns the same account
(discovery: serviceusage.v1beta1, services.generateServiceIdentity), and it cannot be deleted.
"""
