"""Search projects for all resources of one stack, or of all stacks of this product.

The locations come from the APIs, because a stack may have used zones that its settings no longer list.
No list uses the wildcard location `-`, because Cloud Run rejects it, and elsewhere it is not documented to be complete.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.enabled import PAUSE_S, START_LIMIT_S, read_enabled_apis
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, answer_of, enable_command, listed
from gemma_serving.cloud.google_session import AT_ONCE
from gemma_serving.cloud.grants import PolicyHolder, account_of, bindings_of, grants_in
from gemma_serving.cloud.kinds import (
    ACCOUNT,
    BUCKET,
    GRANT,
    KINDS,
    LOCATIONS,
    NETWORK,
    SECRET,
    SUBNETWORK,
    Item,
    Places,
    ResourceKind,
    list_in,
)
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.naming import Names, NamingError
from gemma_serving.contracts.parallel import each
from gemma_serving.contracts.proof import Asker, in_project
from gemma_serving.contracts.search_results import FoundResource, Inventory, ListCall
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown

READ: Final = "read"
NOT_ENABLED: Final = "API not enabled"
NO_SUCH_PLACE: Final = "no such place"
_SETTLE_S: Final = 30.0
"""Delay after which the lists of such an API are read once more (ledger `enabled-api-lists-late`)."""
_ADDRESS: Final = re.compile(r"https?://\S+")
"""Part of a reason that differs between lists with the same cause."""
_MOST_NAMED: Final = 4
"""Kinds that a sentence names; it counts more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Scope of a search."""

    projects: Sequence[str]
    """Google Cloud projects."""
    asker: Asker
    """Whose resources are searched for. Other owners' are only found to be named."""
    stacks: Sequence[str] = ()
    """Names of current and former stacks, for the grants of deleted accounts."""
    places: Mapping[Places, Sequence[str]] = field(default_factory=dict[Places, Sequence[str]])
    """Zones and regions in a state or settings, which are searched even if the API does not list them."""
    buckets: Sequence[str] = ()
    """Buckets, including other projects', on which a stack may have grants."""
    kept: Sequence[str] = ()
    """Full names of retained resources. Grants on them are found like those on other owners' resources."""
    apis: frozenset[str] | None = None
    """APIs in the stacks' settings and states, which alone can have their resources. None: any."""

    def may_use(self, api: str) -> bool:
        """Return whether an API can have resources of the stacks."""
        return self.apis is None or api in self.apis


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    """A list to read: the locations of an API, the resources of a kind, or the policy of a holder."""

    of: ResourceKind | PolicyHolder | Places
    project: str
    path: str
    is_place: bool = True
    """False for a location that neither the API nor a state has. Google denies calls for one that does not exist."""

    @property
    def api(self) -> str:
        return self.of if isinstance(self.of, str) else self.of.api

    @property
    def kind(self) -> str:
        if isinstance(self.of, ResourceKind):
            return self.of.kind
        return GRANT if isinstance(self.of, PolicyHolder) else f"locations of {self.of}"

    @property
    def about(self) -> str:
        """The check that the list performs, as a clause."""
        if isinstance(self.of, ResourceKind):
            article = "an" if self.of.kind[0] in "aeiou" else "a"
            return (
                f"Could not check whether {article} {self.of.kind} still exists: {self.path.partition('?')[0]} answered"
            )
        if isinstance(self.of, PolicyHolder):
            return f"Could not check whether {self.of.name} still has an IAM grant"
        return f"Could not list the {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadList:
    """The result of one list."""

    list: _List
    call: ListCall
    answer: Answer[Sequence[Item]]
    seen: Sequence[Item]
    """Items that were read, even if the list is incomplete. A policy is the only item."""

    @property
    def service(self) -> tuple[str, str]:
        """Project and API of the call."""
        return self.list.project, self.list.api

    @property
    def is_off(self) -> bool:
        """True if the API is off, or responds as if it were, and can have resources of the stacks."""
        return isinstance(self.answer, Unknown) and self.answer.cause == "api off"


Say = Callable[[str], None]


def search(api: GoogleApi, scope: Scope, *, clock: WaitClock | None = None, say: Say | None = None) -> Inventory:
    """Return every resource in scope, each call, and every check that failed. Waits for recently enabled APIs."""
    started_s = time.monotonic()
    reader = _ListReader(api=api, scope=scope, clock=clock or WaitClock(), say=say or (lambda _: None))
    first = reader.reads(_first_lists(scope))
    reads = (*first, *reader.reads([*_place_lists(scope, first), *_policy_lists(scope, first)]))
    resources = [*_resources(reads)]
    grants = [*_grants(reads, scope, [item.owner for item in resources])]
    asker = scope.asker
    owned = [
        *(item for item in resources if asker.owns(item.owner, item.name)),
        *(item for item in grants if asker.owns(item.owner, account_of(item))),
    ]
    networks = [item for item in owned if item.kind == NETWORK]
    unread = _unread_sentences(reads)
    return Inventory(
        asker=asker,
        found=tuple(sorted(owned, key=lambda item: (item.kind, item.name))),
        calls=tuple(read.call for read in reads),
        unknown=tuple(dict.fromkeys([*unread, *reader.switched_off(reads)])),
        elapsed_s=time.monotonic() - started_s,
        foreign=tuple(
            item
            for item in (*resources, *grants)
            if item.owner.project != asker.project and asker.stack in {None, item.owner.stack}
        ),
        claimed=tuple(
            item
            for item in resources
            if not asker.owns(item.owner, item.name) and in_project(item.name) in asker.stated
        ),
        others=frozenset(
            item.owner.stack
            for item in (*resources, *grants)
            if item.owner.project == asker.project and not asker.owns(item.owner, item.name)
        ),
        guests=tuple(item for item in resources if not asker.owns(item.owner, item.name) and _uses(item, networks)),
        users={item.name: _users(item, reads) for item in owned if item.kind in {NETWORK, SUBNETWORK}},
    )


@dataclass(slots=True, kw_only=True)
class _ListReader:
    """Runs the lists of a search, again for recently enabled APIs."""

    api: GoogleApi
    scope: Scope
    clock: WaitClock
    say: Say
    enabled: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])
    """For each project and API that responded as if it were off: whether it is enabled."""
    end_s: float | None = None

    def reads(self, lists: Sequence[_List]) -> Sequence[_ReadList]:
        """Return the result of each list. Lists of a just enabled API are read until they succeed, and once more."""
        reads = self._each(lists)
        late = self._starting(reads)
        while late:
            is_off = any(read.is_off and read.service in late for read in reads)
            if is_off and not self._has_time(late):
                break
            self.clock.sleep(PAUSE_S if is_off else _SETTLE_S)
            again = iter(self._each([read.list for read in reads if read.service in late]))
            reads = [next(again) if read.service in late else read for read in reads]
            if not is_off and not any(read.is_off and read.service in late for read in reads):
                break
        return reads

    def _each(self, lists: Sequence[_List]) -> Sequence[_ReadList]:
        return each([partial(_read, self.api, self.scope, one) for one in lists], workers=AT_ONCE)

    def _has_time(self, late: Iterable[tuple[str, str]]) -> bool:
        if self.end_s is None:
            self.end_s = self.clock.now_s() + START_LIMIT_S
            names = ", ".join(sorted({f"{api}.googleapis.com" for _, api in late}))
            self.say(f"waiting up to {START_LIMIT_S:.0f} s for {names} (recently enabled)")
        return self.clock.now_s() < self.end_s

    def _starting(self, reads: Sequence[_ReadList]) -> frozenset[tuple[str, str]]:
        """Return the APIs that respond as if they were off although they are enabled."""
        off = {read.service for read in reads if read.is_off} - self.enabled.keys()
        for project in sorted({project for project, _ in off}):
            apis = sorted(api for of, api in off if of == project)
            try:
                names = read_enabled_apis(self.api, project, apis)
            except (GoogleListError, ScriptError):
                names = frozenset[str]()
            self.enabled |= {(project, api): api in names for api in apis}
        return frozenset(read.service for read in reads if read.is_off and self.enabled.get(read.service))

    @staticmethod
    def switched_off(reads: Sequence[_ReadList]) -> Iterator[str]:
        """Yield a sentence for each project with APIs that are off."""
        off = [read for read in reads if read.is_off]
        for project in dict.fromkeys(read.list.project for read in off):
            apis = sorted({read.list.api for read in off if read.list.project == project})
            names = ", ".join(f"{api}.googleapis.com" for api in apis)
            yield (
                f"Could not check resources of {names} in project {project} because the API is off. "
                f"They may still be running. Run `{enable_command(project, apis)}`, then the same command again."
            )


def _unread_sentences(reads: Sequence[_ReadList]) -> Iterator[str]:
    """Yield a sentence for each list that could not be read; one for all of a project, or of all, with the same cause."""
    groups: dict[tuple[str, str], list[tuple[_ReadList, str]]] = {}
    for read in reads:
        answer = read.answer
        if not isinstance(answer, Unknown) or read.is_off:
            continue
        # Google's text about a missing permission names the permission of one list.
        is_denied = answer.cause == "denied"
        key = ("denied", read.list.project) if is_denied else (_ADDRESS.sub("", answer.why), "")
        groups.setdefault(key, []).append((read, answer.why))
    for found in groups.values():
        (first, why), *others = found
        if not others:
            yield f"{first.list.about}: {why}"
            continue
        kinds = list(dict.fromkeys(read.list.kind for read, _ in found))
        named = ", ".join(kinds) if len(kinds) <= _MOST_NAMED else f"{len(kinds)} kinds of resources"
        projects = ", ".join(dict.fromkeys(read.list.project for read, _ in found))
        yield f"Could not read {len(found)} lists in project {projects} ({named}), so resources may still exist: {why}"


def resource_of(kind: ResourceKind, item: Item, *, project: str, owner: Ownership) -> FoundResource:
    """Return a resource from the API's response as a found resource."""
    name, location = kind.name(item), kind.location(item)
    return FoundResource(
        kind=kind.kind,
        name=name,
        command=kind.delete_command(name, project=project, location=location),
        project=project,
        location=location,
        created=kind.created(item),
        owner=owner,
        labels=kind.marks(item),
        document=item,
    )


def _first_lists(scope: Scope) -> Sequence[_List]:
    lists: list[_List] = []
    for project in scope.projects:
        lists += [_List(of=places, project=project, path=path.format(p=project)) for places, path in LOCATIONS.items()]
        lists.append(_policy(PolicyHolder(kind="project", project=project, name=f"projects/{project}")))
        kinds = [kind for kind in KINDS if kind.places not in LOCATIONS]
        lists += [_List(of=kind, project=project, path=kind.path.format(p=project)) for kind in kinds]
    return lists


def _place_lists(scope: Scope, first: Sequence[_ReadList]) -> Iterator[_List]:
    for read in first:
        listed = {str(item.get("locationId") or str(item.get("name")).rpartition("/")[2]) for item in read.seen}
        for kind in (kind for kind in KINDS if kind.places == read.list.of):
            for place in sorted({*listed, *scope.places.get(kind.places, ())}):
                path = kind.path.format(p=read.list.project, l=place)
                known = place in listed or any(name.startswith(f"locations/{place}/") for name in scope.asker.stated)
                yield _List(of=kind, project=read.list.project, path=path, is_place=known)


def _policy_lists(scope: Scope, first: Sequence[_ReadList]) -> Iterator[_List]:
    """Yield the policies of buckets and secrets that are not to be deleted."""
    buckets = {f"projects/_/buckets/{name}": scope.projects[0] for name in scope.buckets}
    secrets: dict[str, str] = {}
    for read, kind, item in _items(first):
        name = kind.name(item)
        if scope.asker.owns(kind.owner(item), name) and name not in scope.kept:
            buckets.pop(name, None)
        elif kind.kind in {BUCKET, SECRET}:
            (buckets if kind.kind == BUCKET else secrets)[name] = read.list.project
    for name, project in sorted(buckets.items()):
        yield _policy(PolicyHolder(kind="bucket", project=project, name=name))
    for name, project in sorted(secrets.items()):
        yield _policy(PolicyHolder(kind="secret", project=project, name=name))


def _policy(holder: PolicyHolder) -> _List:
    """Return the list whose only item is the holder's policy."""
    return _List(of=holder, project=holder.project, path=holder.path)


def _read(api: GoogleApi, scope: Scope, of: _List) -> _ReadList:
    started_s = time.monotonic()
    if isinstance(of.of, PolicyHolder):
        items, raw = _policy_of(api, of.of)
        count = sum(len(bindings_of(policy)) for policy in items)
    else:
        items, raw = _listed_items(api, of)
        count = len(items)
    is_unused = isinstance(raw, Unknown) and raw.cause == "api off" and not scope.may_use(of.api)
    answer: Answer[Sequence[Item]] = Absent() if is_unused else raw
    call = ListCall(
        kind=of.kind,
        api=of.api,
        path=of.path.partition("?")[0],
        items=count,
        elapsed_s=time.monotonic() - started_s,
        outcome=_outcome(raw, answer),
    )
    return _ReadList(list=of, call=call, answer=answer, seen=items)


_Read = tuple[Sequence[Item], Answer[Sequence[Item]]]
"""Items that were read, and what they prove."""


def _policy_of(api: GoogleApi, holder: PolicyHolder) -> _Read:
    """Return the policy of a holder as the only item. A bucket or a secret may be gone; a project is not."""
    answer = answer_of(holder.api, lambda: [holder.read(api)])
    if isinstance(answer, Absent) and holder.kind == "project":
        answer = Unknown("Google answered that the project does not exist (404)")
    return (answer.value if isinstance(answer, Present) else []), answer


def _listed_items(api: GoogleApi, of: _List) -> _Read:
    """Return the items of a list. No API has an empty list of locations."""
    key, never_empty = "locations", "locations"
    if isinstance(of.of, ResourceKind):
        key, never_empty = of.of.items, ""
    found = listed(api, of.api, of.path, is_place=of.is_place, never_empty=never_empty)
    items: list[Item] = []
    try:
        for page in found.pages:
            items.extend(_items_of(page, key))
    except ScriptError as error:
        return items, Unknown(str(error))
    return items, found.unread or Present(items)


def _items_of(page: Item, key: str) -> Sequence[Item]:
    """Return the items of a page, which an aggregated list groups by scope. Raises ScriptError."""
    parts = [as_mapping(part) for part in as_mapping(page.get("items")).values()] if key != "items" else [page]
    return [as_mapping(item) for part in parts or [page] for item in list_in(part, key)]


def _outcome(raw: Answer[Sequence[Item]], answer: Answer[Sequence[Item]]) -> str:
    """Return the recorded outcome of a call, which the receipt shows."""
    if isinstance(raw, Unknown) and raw.cause == "api off":
        return NOT_ENABLED
    if isinstance(answer, Unknown):
        return answer.why
    return READ if isinstance(answer, Present) else NO_SUCH_PLACE


def _items(reads: Sequence[_ReadList]) -> Iterator[tuple[_ReadList, ResourceKind, Item]]:
    for read in reads:
        if isinstance(read.list.of, ResourceKind):
            for item in read.seen:
                yield read, read.list.of, item


def _resources(reads: Sequence[_ReadList]) -> Iterator[FoundResource]:
    for read, kind, item in _items(reads):
        owner = kind.owner(item)
        if owner is not None:
            yield resource_of(kind, item, project=read.list.project, owner=owner)


def _uses(found: FoundResource, networks: Sequence[FoundResource]) -> bool:
    """Return whether the document of a resource names one of these networks."""
    return any(names(found.document, network.name) for network in networks)


def _users(of: FoundResource, reads: Sequence[_ReadList]) -> Sequence[str]:
    """Return the full names of the listed resources that name a network or subnetwork."""
    named = [(kind.name(item), names(item, of.name)) for _, kind, item in _items(reads)]
    return [name for name, uses in named if uses and name != of.name]


def names(item: Item, network: str) -> bool:
    """Return whether a document names a network or subnetwork, by the project's id or number. Cloud Run takes the last part of a name too."""
    _, project, rest = network.split("/", 2)
    full = rf'projects/({re.escape(project)}|\d+)/{re.escape(rest)}"'
    return bool(re.search(full, json.dumps(item))) or f'"{rest.rpartition("/")[2]}"' in json.dumps(item.get("template"))


def _grants(reads: Sequence[_ReadList], scope: Scope, owners: Sequence[Ownership]) -> Iterator[FoundResource]:
    """Yield the grants of stacks. A deleted account belongs to the stack of the asker's project whose account gets this name."""
    accounts = {str(item.get("email")): kind.owner(item) for _, kind, item in _items(reads) if kind.kind == ACCOUNT}
    asker = scope.asker
    stacks = {*scope.stacks, *filter(None, [asker.stack]), *(owner.stack for owner in owners if asker.owns(owner))}
    for stack in stacks:
        for project in scope.projects:
            with suppress(NamingError):
                deleted = Names(project=project, stack=stack).account_email
                accounts.setdefault(deleted, Ownership(project=asker.project, stack=stack))
    for read in reads:
        if isinstance(read.list.of, PolicyHolder):
            for policy in read.seen:
                yield from grants_in(policy, read.list.of, accounts)
