"""Find every type that a stack creates: owner, and id in `gcp` 10.2 (schema, states) or `gcp-tpu`."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from gemma_serving.cloud.capacity import NO_SUCH_PLACE, capacity_kind, capacity_names, urn_marks
from gemma_serving.cloud.google_api import GoogleApi, listed, lookup_resource
from gemma_serving.cloud.kinds import BY_TYPE, INSTANCE, QUEUED, SECRET, ResourceKind, by_name
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.labels import URN_DIGITS, Ownership
from gemma_serving.contracts.parallel import each
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.engine.exported_state import UNKNOWN
from gemma_serving.scripts.up.state_edit import contains_text

_ZONES_AT_ONCE: Final = 8

Json: TypeAlias = Mapping[str, object]
Owner = Literal["owned", "not_owned", "missing"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupResult:
    """Lookup result of one resource. `outputs`: those that a refresh needs in addition to the inputs."""

    owner: Owner
    name: str
    id: str = ""
    outputs: Json = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSession:
    """API session and the wanted owner."""

    api: GoogleApi
    owner: Ownership

    def known(self, answer: Answer[T], path: str) -> T | None:
        """Return the answer, or None if nothing exists. Raises ScriptError if that is unknown."""
        match answer:
            case Present(value=value):
                return value
            case Absent():
                return None
            case Unknown(why=why):
                raise ScriptError(
                    f"Could not look up {path.partition('?')[0]}: {why.rstrip('.')}. "
                    f"`gemma doctor {self.owner.stack}` names APIs that are off and missing permissions. Nothing was changed."
                )

    def whose(self, body: Json | None, name: str, resource_id: str, outputs: Json | None = None) -> LookupResult:
        """Return the result for the labels or description in this document, if one exists."""
        if body is None:
            return LookupResult(owner="missing", name=name)
        is_owned = self.owner.owns(
            labels=as_mapping(body.get("labels")), description=str(body.get("description") or "")
        )
        return LookupResult(
            owner="owned" if is_owned else "not_owned", name=name, id=resource_id, outputs=outputs or {}
        )


class AdoptableKind(NamedTuple):
    """A type that `up` can import, the inputs that identify a resource, and its lookup."""

    noun: str
    needs: tuple[str, ...]
    lookup: Callable[[LookupSession, str, Json], LookupResult]


def lookup(search: LookupSession, type_: str, urn: str, inputs: Json) -> LookupResult | None:
    """Find a resource. Return None if its type or a value that identifies it is unknown."""
    kind = KINDS.get(type_)
    if kind is None or not all(inputs.get(name) and not contains_text(inputs[name], UNKNOWN) for name in kind.needs):
        return None
    return kind.lookup(search, urn, inputs)


def _named(kind: ResourceKind) -> Callable[[LookupSession, str, Json], LookupResult]:
    """Return the lookup of a resource whose name is its id."""

    def find(search: LookupSession, _urn: str, inputs: Json) -> LookupResult:
        full = kind.named(inputs)
        is_bucket = kind.api == "storage"
        short = str(inputs["name"]) if is_bucket else full
        name = f"gs://{short}" if is_bucket else full
        answer = lookup_resource(search.api, kind, full)
        if is_bucket and isinstance(answer, Unknown) and answer.cause == "denied":
            return LookupResult(owner="not_owned", name=name)  # names of buckets are unique among all projects
        body = search.known(answer, full)
        # Without these, a refresh treats the provider's attribution label as foreign.
        labels = as_mapping(as_mapping(body).get("labels"))
        outputs = {"effectiveLabels": dict(labels), "pulumiLabels": dict(labels)} if labels else {}
        return search.whose(body, name, short, outputs)

    return find


def _titled(kind: ResourceKind) -> Callable[[LookupSession, str, Json], LookupResult]:
    """Return the lookup of a resource that Google names: the stack's own of this title."""

    def find(search: LookupSession, _urn: str, inputs: Json) -> LookupResult:
        title = inputs.get("displayName") or json.loads(str(inputs["dashboardJson"]))["displayName"]
        path = kind.path.format(p=inputs["project"])
        pages = search.known(listed(search.api, kind.api, path).answer, path) or ()
        for item in (as_mapping(one) for page in pages for one in as_sequence(page.get(kind.items))):
            if kind.owner(item) == search.owner and item.get("displayName") == title:
                return LookupResult(owner="owned", name=kind.name(item), id=kind.name(item))
        return LookupResult(owner="missing", name=str(title))

    return find


def _nat(search: LookupSession, _urn: str, inputs: Json) -> LookupResult:
    project = inputs["project"]
    region = inputs["region"]
    name = inputs["name"]
    router = str(inputs["router"]).rpartition("/")[2]
    path = f"projects/{project}/regions/{region}/routers/{router}"
    body = search.known(lookup_resource(search.api, by_name("router"), path), path)
    exists = any(as_mapping(nat).get("name") == name for nat in as_sequence(as_mapping(body).get("nats")))
    return search.whose(body if exists else None, f"{path}/nats/{name}", f"{project}/{region}/{router}/{name}")


def _secret_version(search: LookupSession, _urn: str, inputs: Json) -> LookupResult:
    """Find the newest enabled version of a secret, whose number Google chooses."""
    secret = str(inputs["secret"])
    body = search.known(lookup_resource(search.api, by_name(SECRET), secret), secret)
    path = f"v1/{secret}/versions?pageSize=100"
    pages = search.known(listed(search.api, "secretmanager", path).answer, path) if body is not None else None
    versions = [as_mapping(item) for page in pages or () for item in as_sequence(page.get("versions"))]
    names = [str(version.get("name")) for version in versions if version.get("state") == "ENABLED"]
    if body is None or not names:
        return LookupResult(owner="missing", name=f"{secret}/versions")
    newest = max(names, key=lambda name: int(name.rpartition("/")[2]))
    number = newest.rpartition("/")[2]
    return search.whose(body, f"{secret}/versions/{number}", newest, {"name": newest, "version": number})


def _queued_resource(search: LookupSession, urn: str, inputs: Json) -> LookupResult:
    """Find the capacity of this id in every zone, owned by its labels and the hash of the URN."""
    project = str(inputs["project"])
    identifier = str(inputs["queuedResourceId"])
    stateless = f"projects/{project}/queuedResources/{identifier}"
    wanted = [str(zone) for zone in as_sequence(inputs.get("zones"))]
    is_instance = capacity_kind(inputs) == INSTANCE
    existing = [*_instances(search, project, identifier)] if is_instance else _queued(search, inputs, wanted)
    mark, kind = hashlib.sha256(urn.encode()).hexdigest()[:URN_DIGITS], by_name(capacity_kind(inputs))
    owned = [name for name, body in existing if mark in urn_marks(body) and kind.owner(body) == search.owner]
    if owned:
        history = list[object]()
        outputs = {"name": owned[0], "zone": owned[0].split("/")[3], "state": "UNKNOWN", "stateHistory": history}
        return LookupResult(owner="owned", name=" and ".join(owned), id=stateless, outputs=outputs)
    others = [name for name, _ in existing if name.split("/")[3] in wanted and name.endswith(f"/{identifier}")]
    return LookupResult(owner="not_owned" if others else "missing", name=" and ".join(others) or stateless)


def _instances(search: LookupSession, project: str, identifier: str) -> Iterator[tuple[str, Json]]:
    """Yield the instances of this name with their full names, from one list of all zones. Raises ScriptError."""
    path = f"compute/v1/projects/{project}/aggregated/instances?filter=name%3D{identifier}"
    for page in search.known(listed(search.api, "compute", path).answer, path) or ():
        for scope, found in as_mapping(page.get("items")).items():
            for item in as_sequence(as_mapping(found).get("instances")):
                yield f"projects/{project}/{scope}/instances/{identifier}", as_mapping(item)


def _queued(search: LookupSession, inputs: Json, wanted: Sequence[str]) -> Sequence[tuple[str, Json]]:
    """Return the queued resources of this id in all zones. Raises ScriptError."""
    zones = {*wanted}
    path = f"v2alpha1/projects/{inputs['project']}/locations"
    pages = search.known(listed(search.api, "tpu", path, never_empty="locations").answer, path)
    for page in pages or ():
        zones |= {str(as_mapping(item).get("locationId")) for item in as_sequence(page.get("locations"))}
    names = capacity_names(inputs, sorted(zones))
    bodies = each([partial(_in_zone, search, name) for name in names], workers=_ZONES_AT_ONCE)
    return [(name, body) for name, body in zip(names, bodies, strict=True) if body is not None]


def _in_zone(search: LookupSession, name: str) -> Json | None:
    """Return the queued resource; None if it does not exist or the project has no access to the zone.

    Raises ScriptError for every other response.
    """
    answer = lookup_resource(search.api, by_name(QUEUED), name)
    is_no_place = isinstance(answer, Unknown) and answer.cause == "denied" and NO_SUCH_PLACE in answer.why
    return None if is_no_place else search.known(answer, name)


KINDS: Final[Mapping[str, AdoptableKind]] = {
    **{type_: AdoptableKind(kind.kind, kind.needs, _named(kind)) for type_, kind in BY_TYPE.items()},
    "gcp:compute/routerNat:RouterNat": AdoptableKind("NAT", ("project", "region", "name", "router"), _nat),
    "gcp:secretmanager/secretVersion:SecretVersion": AdoptableKind("secret version", ("secret",), _secret_version),
    **{
        type_: AdoptableKind(BY_TYPE[type_].kind, ("project", needed), _titled(BY_TYPE[type_]))
        for type_, needed in (
            ("gcp:monitoring/alertPolicy:AlertPolicy", "displayName"),
            ("gcp:monitoring/notificationChannel:NotificationChannel", "displayName"),
            ("gcp:monitoring/dashboard:Dashboard", "dashboardJson"),
        )
    },
    CAPACITY_TYPE: AdoptableKind("queued resource", ("project", "queuedResourceId", "zones"), _queued_resource),
}
