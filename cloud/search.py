"""Search projects for all resources of one stack, or of all stacks of this product.

The locations come from the APIs, because a stack may have used zones that its settings no longer list.
No list uses the wildcard location `-`: Cloud Run rejects it, and elsewhere it is not documented to be complete.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, cast

from cloud.clock import WaitClock
from cloud.enabled import PAUSE_S, START_LIMIT_S, read_enabled_apis
from cloud.found import FoundResource, Inventory, ListCall
from cloud.google_api import CONNECTIONS, GoogleApi, GoogleListError, answer_of, enable_command
from cloud.grants import Accounts, PolicyHolder, grants_in
from cloud.kinds import (
    ACCOUNT,
    BUCKET,
    GRANT,
    KINDS,
    LOCATIONS,
    NETWORK,
    SECRET,
    Item,
    Places,
    ResourceKind,
    bindings_of,
    by_name,
    list_in,
)
from contracts.answers import Absent, Answer, Present, Unknown
from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence
from contracts.labels import PRODUCT, Ownership
from contracts.naming import Names, NamingError
from contracts.parallel import each

READ: Final = "read"
NOT_ENABLED: Final = "API not enabled"
NO_SUCH_PLACE: Final = "no such place"
_SETTLE_S: Final = 30.0
"""Delay after which the lists of such an API are read once more (ledger `enabled-api-lists-late`)."""
_HARMLESS_WARNINGS: Final = frozenset({"NO_RESULTS_ON_PAGE"})
"""Codes of Compute Engine warnings that omit nothing (discovery: compute.v1 RoutersScopedList.warning.code)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Scope of a search."""

    projects: Sequence[str]
    stack: str | None
    """Name of the stack; None: all stacks of this product."""
    stacks: Sequence[str] = ()
    """Names of current and former stacks, for grants of deleted accounts."""
    places: Mapping[Places, Sequence[str]] = field(default_factory=dict[Places, Sequence[str]])
    """Zones and regions in a state or settings, which are searched even if the API does not list them."""
    buckets: Sequence[str] = ()
    """Buckets, including other projects', on which a stack may have grants."""
    kept: Sequence[str] = ()
    """Full names of retained resources. Grants on them are found like those on other owners' resources."""
    apis: frozenset[str] | None = None
    """APIs in the stacks' settings and states, which alone can have their resources. None: any."""
    held: Sequence[str] = ()
    """Zones in which a state has a resource. A denied one is not assumed to be empty."""

    def may_use(self, api: str) -> bool:
        """Return whether an API can have resources of the stacks."""
        return self.apis is None or api in self.apis

    def wants(self, owner: Ownership | None) -> bool:
        """Return whether a resource of this owner is searched for."""
        return owner is not None and self.stack in {None, owner.stack}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The result of one list."""

    call: ListCall
    project: str
    about: str
    """The check that the list performs, as a clause."""
    answer: Answer[Sequence[Item]]
    seen: Sequence[Item] = ()
    """Items that were read, even if the list is incomplete."""
    kind: ResourceKind | None = None
    """Kind of the items; None for locations and policies."""
    places: Places | None = None
    """For a list of locations: its API."""
    holder: PolicyHolder | None = None
    """For a policy: its resource."""

    @property
    def service(self) -> tuple[str, str]:
        """Project and API of the call."""
        return self.project, self.call.api

    @property
    def is_off(self) -> bool:
        """True if the API is off, or responds as if it were, and can have resources of the stacks."""
        return isinstance(self.answer, Unknown) and self.answer.cause == "api off"


_Task = Callable[[], _Read]
Say = Callable[[str], None]


def search(api: GoogleApi, scope: Scope, *, clock: WaitClock | None = None, say: Say | None = None) -> Inventory:
    """Return every resource in scope, each call, and every check that failed.

    Waits up to START_LIMIT_S for recently enabled APIs; `say` is called before the wait.
    """
    started_s = time.monotonic()
    reader = _ListReader(api=api, clock=clock or WaitClock(), say=say or (lambda _: None))
    first = reader.reads([*_location_tasks(api, scope), *_project_tasks(api, scope)])
    second = reader.reads([*_place_tasks(api, scope, first), *_policy_tasks(api, scope, first)])
    reads = (*first, *second)
    resources = [*_resources(reads)]
    own = [item for item in resources if scope.wants(item.owner)]
    found = [*own, *_grants(reads, scope, [item.owner for item in resources])]
    networks = [item.name for item in own if item.kind == NETWORK]
    return Inventory(
        found=tuple(sorted(found, key=lambda item: (item.kind, item.name))),
        calls=tuple(read.call for read in reads),
        unknown=tuple(dict.fromkeys([*_unread_lists(reads), *reader.switched_off(reads)])),
        elapsed_s=time.monotonic() - started_s,
        guests=tuple(item for item in resources if not scope.wants(item.owner) and _uses(item, networks)),
    )


def _unread_lists(reads: Sequence[_Read]) -> Iterator[str]:
    """Yield a sentence for each list that proves nothing, except for an API that is off."""
    for read in reads:
        if isinstance(read.answer, Unknown) and not read.is_off:
            yield f"{read.about}: {read.answer.why}"


@dataclass(slots=True, kw_only=True)
class _ListReader:
    """Runs the lists of a search, again for recently enabled APIs."""

    api: GoogleApi
    clock: WaitClock
    say: Say
    enabled: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])
    """For each project and API that responded as if it were off: whether it is enabled."""
    end_s: float | None = None

    def reads(self, tasks: Sequence[_Task]) -> Sequence[_Read]:
        """Return the result of each list. Those of a just enabled API are read until they succeed, and once more."""
        reads = list(each(tasks, workers=CONNECTIONS))
        late = self._starting(reads)
        settled = False
        while late:
            off = any(read.is_off and read.service in late for read in reads)
            if settled and not off:
                break
            if off and not self._has_time(late):
                break
            settled = not off
            self.clock.sleep(_SETTLE_S if settled else PAUSE_S)
            numbers = [number for number, read in enumerate(reads) if read.service in late]
            again = each([tasks[number] for number in numbers], workers=CONNECTIONS)
            for number, read in zip(numbers, again, strict=True):
                reads[number] = read
        return reads

    def _has_time(self, late: Iterable[tuple[str, str]]) -> bool:
        if self.end_s is None:
            self.end_s = self.clock.now_s() + START_LIMIT_S
            names = ", ".join(sorted({f"{api}.googleapis.com" for _, api in late}))
            self.say(f"waiting up to {START_LIMIT_S:.0f} s for {names} (recently enabled)")
        return self.clock.now_s() < self.end_s

    def _starting(self, reads: Sequence[_Read]) -> frozenset[tuple[str, str]]:
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

    def switched_off(self, reads: Sequence[_Read]) -> Iterator[str]:
        """Yield a sentence for each project with APIs that are off."""
        off = [read for read in reads if read.is_off]
        for project in dict.fromkeys(read.project for read in off):
            apis = sorted({read.call.api for read in off if read.project == project})
            starting = [api for api in apis if self.enabled.get((project, api))]
            names = " and ".join(f"{api}.googleapis.com" for api in apis)
            fix = (
                "Recently enabled: run the same command again in a few minutes."
                if starting == apis
                else f"Run `{enable_command(project, apis)}`, then the same command again."
            )
            yield (
                f"Could not check resources of {names} in project {project} because the API is off. "
                f"They may still be running. {fix}"
            )


def accounts_of(scope: Scope, existing: Sequence[Item], owners: Sequence[Ownership]) -> Accounts:
    """Return the owners of accounts.

    A deleted account belongs to the stack that would have its name.
    """
    by_email = {str(item.get("email")): by_name(ACCOUNT).owner(item) for item in existing}
    by_stack = {owner.stack: owner for owner in owners}
    found = {email: owner for email, owner in by_email.items() if owner is not None}
    for stack in {*([scope.stack] if scope.stack else []), *scope.stacks, *by_stack}:
        for project in scope.projects:
            email = _email(stack, project)
            if email and email not in by_email:
                found[email] = by_stack.get(stack) or Ownership(project=PRODUCT, stack=stack)
    return Accounts(owners=found)


def resource_of(kind: ResourceKind, item: Item, *, project: str, owner: Ownership) -> FoundResource:
    """Return a resource from the API's response as a found resource."""
    name, location = kind.name(item), kind.location(item)
    return FoundResource(
        kind=kind.kind,
        name=name,
        command=kind.delete_command(name, project=project, location=location),
        project=project,
        location=location,
        created=str(item.get(kind.of_api.created) or ""),
        owner=owner,
        labels=kind.marks(item),
        etag=str(item.get(kind.of_api.etag) or ""),
        document=item,
    )


def _location_tasks(api: GoogleApi, scope: Scope) -> Iterator[_Task]:
    for project in scope.projects:
        for places, path in LOCATIONS.items():
            yield partial(_locations, api, places, path.format(p=project), project, scope)


def _project_tasks(api: GoogleApi, scope: Scope) -> Iterator[_Task]:
    """Yield the lists that need no location, and the projects' policies."""
    for project in scope.projects:
        yield partial(_policy, api, PolicyHolder(kind="project", project=project, name=f"projects/{project}"), scope)
        for kind in KINDS:
            if kind.places not in LOCATIONS:
                yield partial(_items, api, kind, kind.path.format(p=project), project, scope, is_place=True)


def _place_tasks(api: GoogleApi, scope: Scope, first: Sequence[_Read]) -> Iterator[_Task]:
    for read in first:
        listed = {str(item.get("locationId") or str(item.get("name")).rpartition("/")[2]) for item in read.seen}
        for kind in KINDS:
            if read.places is not None and kind.places == read.places:
                for place in sorted({*listed, *scope.places.get(read.places, ())}):
                    path = kind.path.format(p=read.project, l=place)
                    known = place in listed or place in scope.held
                    yield partial(_items, api, kind, path, read.project, scope, is_place=known)


def _policy_tasks(api: GoogleApi, scope: Scope, first: Sequence[_Read]) -> Iterator[_Task]:
    """Yield the policies of buckets and secrets that are not to be deleted."""
    buckets = {f"projects/_/buckets/{name}": scope.projects[0] for name in scope.buckets}
    secrets: dict[str, str] = {}
    for read, kind in ((read, read.kind) for read in first if read.kind is not None):
        for item in read.seen:
            name = kind.name(item)
            if scope.wants(kind.owner(item)) and name not in scope.kept:
                buckets.pop(name, None)
            elif kind.kind in {BUCKET, SECRET}:
                (buckets if kind.kind == BUCKET else secrets)[name] = read.project
    for name, project in sorted(buckets.items()):
        yield partial(_policy, api, PolicyHolder(kind="bucket", project=project, name=name), scope)
    for name, project in sorted(secrets.items()):
        yield partial(_policy, api, PolicyHolder(kind="secret", project=project, name=name), scope)


def _locations(api: GoogleApi, places: Places, path: str, project: str, scope: Scope) -> _Read:
    read = _pages(api, f"locations of {places}", places, path, "locations", project, scope, is_place=True)
    return replace(read, about=f"Could not list the locations of {places}", places=places)


def _items(api: GoogleApi, kind: ResourceKind, path: str, project: str, scope: Scope, *, is_place: bool) -> _Read:
    read = _pages(api, kind.kind, kind.api, path, kind.items, project, scope, is_place=is_place)
    about = f"Could not check whether a {kind.kind} still exists: {read.call.path} answered"
    return replace(read, about=about, kind=kind)


def _policy(api: GoogleApi, holder: PolicyHolder, scope: Scope) -> _Read:
    """Return a policy as the only item."""
    started_s = time.monotonic()
    raw = answer_of(holder.api, lambda: (holder.read(api),))
    answer = _judged(raw, holder.api, scope, is_place=True)
    seen = raw.value if isinstance(raw, Present) else ()
    bindings = [binding for policy in seen for binding in bindings_of(policy)]
    call = ListCall(
        kind=GRANT,
        api=holder.api,
        path=holder.path,
        items=len(bindings),
        elapsed_s=time.monotonic() - started_s,
        outcome=_outcome(raw, answer),
    )
    about = f"Could not check whether {holder.name} still has an IAM grant"
    return _Read(call=call, project=holder.project, about=about, answer=answer, seen=seen, holder=holder)


def _pages(  # noqa: PLR0917 - the parameters of one list
    api: GoogleApi, kind: str, service: str, path: str, key: str, project: str, scope: Scope, *, is_place: bool
) -> _Read:
    started_s = time.monotonic()
    items: list[Item] = []
    unread: list[str] = []

    def read() -> Sequence[Item]:
        for page in api.pages(service, path):
            items.extend(_items_of(page, key))
            unread.extend(_unread(page))
        return items

    raw = answer_of(service, read)
    answer = _judged(raw, service, scope, is_place=is_place)
    if unread:
        answer = Unknown(f"{', '.join(unread)} could not be reached")
    call = ListCall(
        kind=kind,
        api=service,
        path=path.partition("?")[0],
        items=len(items),
        elapsed_s=time.monotonic() - started_s,
        outcome=_outcome(raw, answer),
    )
    return _Read(call=call, project=project, about="", answer=answer, seen=items)


def _items_of(page: Item, key: str) -> Sequence[Item]:
    """Return the items of a page, which an aggregated list groups by scope. Raises ScriptError."""
    parts = [as_mapping(part) for part in as_mapping(page.get("items")).values()] if key != "items" else [page]
    return [as_mapping(item) for part in parts or [page] for item in list_in(part, key)]


def _unread(page: Item) -> Iterator[str]:
    """Yield the locations that the response itself reports as omitted."""
    for key in ("unreachable", "unreachables"):
        yield from map(str, as_sequence(page.get(key)))
    for scope, part in {"": page, **as_mapping(page.get("items"))}.items():
        warning = as_mapping(as_mapping(part).get("warning"))
        if warning and warning.get("code") not in _HARMLESS_WARNINGS:
            yield scope or str(warning.get("message") or warning.get("code"))


def _judged(answer: Answer[Sequence[Item]], service: str, scope: Scope, *, is_place: bool) -> Answer[Sequence[Item]]:
    """Return what a response proves about the stacks. Google returns 403 for a location that does not exist."""
    match answer:
        case Unknown(cause="api off") if not scope.may_use(service):
            return Absent()
        case Unknown(cause="denied") if not is_place:
            return Absent()
        case Present() | Absent() | Unknown():
            return answer


def _outcome(raw: Answer[Sequence[Item]], answer: Answer[Sequence[Item]]) -> str:
    """Return the recorded outcome of a call."""
    if isinstance(raw, Unknown) and raw.cause == "api off":
        return NOT_ENABLED
    if isinstance(answer, Unknown):
        return answer.why
    return READ if isinstance(answer, Present) else NO_SUCH_PLACE


def _resources(reads: Sequence[_Read]) -> Iterator[FoundResource]:
    """Yield every resource that belongs to a stack, of whatever owner."""
    for read, kind in ((read, read.kind) for read in reads if read.kind is not None):
        for item in read.seen:
            owner = kind.owner(item)
            if owner is not None:
                yield resource_of(kind, item, project=read.project, owner=owner)


def _uses(found: FoundResource, networks: Sequence[str]) -> bool:
    """Return whether a resource names one of these networks."""
    return any(text.endswith(f"/{name}") or text == name for text in _leaves(found.document) for name in networks)


def _leaves(value: object) -> Iterator[str]:
    """Yield every text in a response."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in as_mapping(cast("object", value)).values():
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in as_sequence(cast("object", value)):
            yield from _leaves(inner)


def _grants(reads: Sequence[_Read], scope: Scope, owners: Sequence[Ownership]) -> Iterator[FoundResource]:
    existing = [item for read in reads if read.kind and read.kind.kind == ACCOUNT for item in read.seen]
    accounts = accounts_of(scope, existing, owners)
    for read, holder in ((read, read.holder) for read in reads if read.holder is not None):
        for policy in read.seen:
            yield from (grant for grant in grants_in(policy, holder, accounts) if scope.wants(grant.owner))


def _email(stack: str, project: str) -> str:
    try:
        return Names(project=project, stack=stack).account_email
    except NamingError:
        return ""
