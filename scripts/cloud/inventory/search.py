"""Search projects for everything that belongs to one stack, or to all stacks of this product.

The places come from the APIs themselves, not from a stack's settings: a stack may have been in zones that its settings no longer name.
No list uses the wildcard location `-`: Cloud Run refuses it, and for Cloud TPU and Artifact Registry nothing says that it finds all.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from contracts.labels import PRODUCT, Ownership
from scripts.cloud.google_api import CONNECTIONS, GoogleApi, GoogleListError
from scripts.cloud.inventory.found import FoundResource, Inventory, ListCall
from scripts.cloud.inventory.grants import Accounts, PolicyHolder, grants_in
from scripts.cloud.inventory.kinds import GRANT, KINDS, LOCATIONS, Item, Places, ResourceKind, by_name
from scripts.cloud.parallel import each
from scripts.errors import ScriptError
from stacks.naming import Names, NamingError

READ: Final = "read"
NOT_ENABLED: Final = "API not enabled"
NO_SUCH_PLACE: Final = "no such place"
_SERVICE_DISABLED: Final = frozenset({"SERVICE_DISABLED", "accessNotConfigured"})
"""Reasons of a disabled API; the second is that of Cloud Storage and Compute Engine."""
_NO_QUOTA_PROJECT: Final = "requires a quota project"
"""Google's words, with the reason of a disabled API, for a call that names no project for quota: it proves nothing about the API."""
_DENIED, _MISSING = 403, 404
_HARMLESS_WARNINGS: Final = frozenset({"NO_RESULTS_ON_PAGE"})
"""Codes of warnings of Compute Engine that leave nothing out (discovery: compute.v1 RoutersScopedList.warning.code)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where to search, and for whom."""

    projects: Sequence[str]
    stack: str | None
    """Name of the stack; None: all stacks of this product."""
    stacks: Sequence[str] = ()
    """Names of stacks that exist or existed, for grants of accounts that are gone."""
    places: Mapping[Places, Sequence[str]] = field(default_factory=dict[Places, Sequence[str]])
    """Zones and regions that a state or settings name. They are searched even if the API does not list them."""
    buckets: Sequence[str] = ()
    """Buckets, also of other projects, on which a stack may have grants."""
    kept: Sequence[str] = ()
    """Full names of resources that stay. Grants on them are found like those on resources of others."""

    def wants(self, owner: Ownership | None) -> bool:
        """Whether a resource of this owner is searched for."""
        return owner is not None and self.stack in {None, owner.stack}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What one list answered."""

    call: ListCall
    project: str
    items: Sequence[Item] = ()
    untold: str = ""
    kind: ResourceKind | None = None
    """The kind of the items; None for locations and policies."""
    places: Places | None = None
    """For a list of locations: whose."""
    holder: PolicyHolder | None = None
    """For a policy: whose."""


_Task = Callable[[], _Read]


def search(api: GoogleApi, scope: Scope) -> Inventory:
    """Return every resource in scope, each call that was made, and what could not be read."""
    started_s = time.monotonic()
    first = each([*_location_tasks(api, scope), *_project_tasks(api, scope)], workers=CONNECTIONS)
    second = each([*_place_tasks(api, scope, first), *_policy_tasks(api, scope, first)], workers=CONNECTIONS)
    reads = (*first, *second)
    found = [*_resources(reads, scope), *_grants(reads, scope)]
    return Inventory(
        found=tuple(sorted(found, key=lambda item: (item.kind, item.name))),
        calls=tuple(read.call for read in reads),
        untold=tuple(dict.fromkeys(read.untold for read in reads if read.untold)),
        elapsed_s=time.monotonic() - started_s,
    )


def accounts_of(scope: Scope, existing: Sequence[Item], owners: Sequence[Ownership]) -> Accounts:
    """Return whose grants are a stack's.

    An account that exists counts by its description. The name of an account that is gone counts for the stack that would have it.
    """
    by_email = {str(item.get("email")): by_name("service account").owner(item) for item in existing}
    by_stack = {owner.stack: owner for owner in owners}
    found = {email: owner for email, owner in by_email.items() if owner is not None}
    for stack in {*([scope.stack] if scope.stack else []), *scope.stacks, *by_stack}:
        for project in scope.projects:
            email = _email(stack, project)
            if email and email not in by_email:
                found[email] = by_stack.get(stack) or Ownership(project=PRODUCT, stack=stack)
    return Accounts(owners=found)


def resource_of(kind: ResourceKind, item: Item, *, project: str, owner: Ownership) -> FoundResource:
    """Return what the API answered as a found resource."""
    name, location = kind.name(item), kind.location(item)
    return FoundResource(
        kind=kind.kind,
        name=name,
        command=kind.delete_command(name, project=project, location=location),
        project=project,
        location=location,
        created=str(item.get(kind.created) or "") if kind.created else "",
        owner=owner,
        labels=kind.marks(item),
        etag=str(item.get(kind.etag) or "") if kind.etag else "",
        document=item,
    )


def _location_tasks(api: GoogleApi, scope: Scope) -> Iterator[_Task]:
    for project in scope.projects:
        for places, path in LOCATIONS.items():
            yield partial(_locations, api, places, path.format(p=project), project)


def _project_tasks(api: GoogleApi, scope: Scope) -> Iterator[_Task]:
    """Yield the lists that need no location, and the projects' policies."""
    for project in scope.projects:
        yield partial(_policy, api, PolicyHolder(kind="project", project=project, name=f"projects/{project}"))
        for kind in KINDS:
            if kind.places not in LOCATIONS:
                yield partial(_items, api, kind, kind.path.format(p=project), project, listed=True)


def _place_tasks(api: GoogleApi, scope: Scope, first: Sequence[_Read]) -> Iterator[_Task]:
    for read in first:
        listed = {str(item.get("locationId") or str(item.get("name")).rpartition("/")[2]) for item in read.items}
        for kind in KINDS:
            if read.places is not None and kind.places == read.places:
                for place in sorted({*listed, *scope.places.get(read.places, ())}):
                    path = kind.path.format(p=read.project, l=place)
                    yield partial(_items, api, kind, path, read.project, listed=place in listed)


def _policy_tasks(api: GoogleApi, scope: Scope, first: Sequence[_Read]) -> Iterator[_Task]:
    """Yield the policies of buckets and secrets that are not to be deleted."""
    buckets = {f"projects/_/buckets/{name}": scope.projects[0] for name in scope.buckets}
    secrets: dict[str, str] = {}
    for read in first:
        for item in read.items if read.kind else ():
            kind = cast("ResourceKind", read.kind)
            name = kind.name(item)
            if scope.wants(kind.owner(item)) and name not in scope.kept:
                buckets.pop(name, None)
            elif kind.kind in {"bucket", "secret"}:
                (buckets if kind.kind == "bucket" else secrets)[name] = read.project
    for name, project in sorted(buckets.items()):
        yield partial(_policy, api, PolicyHolder(kind="bucket", project=project, name=name))
    for name, project in sorted(secrets.items()):
        yield partial(_policy, api, PolicyHolder(kind="secret", project=project, name=name))


def _locations(api: GoogleApi, places: Places, path: str, project: str) -> _Read:
    items, outcome, call = _pages(api, f"locations of {places}", places, path, "locations", listed=True)
    untold = "" if outcome in {READ, NOT_ENABLED} else f"Could not list the locations of {places}: {outcome}"
    return _Read(call=call, project=project, items=items, untold=untold, places=places)


def _items(api: GoogleApi, kind: ResourceKind, path: str, project: str, *, listed: bool) -> _Read:
    items, outcome, call = _pages(api, kind.kind, kind.api, path, kind.items, listed=listed)
    told = outcome in {READ, NOT_ENABLED, NO_SUCH_PLACE}
    sentence = f"Could not check whether a {kind.kind} still exists: {call.path} answered: {outcome}"
    return _Read(call=call, project=project, items=items, untold="" if told else sentence, kind=kind)


def _policy(api: GoogleApi, holder: PolicyHolder) -> _Read:
    """Read a policy: its bindings are its items."""
    started_s = time.monotonic()
    policy: Item = {}
    outcome = READ
    try:
        policy = holder.read(api)
    except (GoogleListError, ScriptError) as error:
        outcome = _outcome(error, listed=True)
    bindings = cast("Sequence[Item]", policy.get("bindings") or ())
    call = ListCall(
        kind=GRANT,
        api=holder.api,
        path=holder.path,
        items=len(bindings),
        elapsed_s=time.monotonic() - started_s,
        outcome=outcome,
    )
    told = outcome in {READ, NOT_ENABLED, NO_SUCH_PLACE}
    sentence = f"Could not check whether {holder.name} still has an IAM grant: {outcome}"
    return _Read(call=call, project=holder.project, items=(policy,), untold="" if told else sentence, holder=holder)


def _pages(
    api: GoogleApi, kind: str, service: str, path: str, key: str, *, listed: bool
) -> tuple[Sequence[Item], str, ListCall]:
    started_s = time.monotonic()
    items: list[Item] = []
    unread: list[str] = []
    outcome = READ
    try:
        for page in api.pages(service, path):
            items += _items_of(page, key)
            unread += _unread(page)
    except (GoogleListError, ScriptError) as error:
        outcome = _outcome(error, listed=listed)
    if unread:
        outcome = f"{', '.join(unread)} could not be reached"
    call = ListCall(
        kind=kind,
        api=service,
        path=path.partition("?")[0],
        items=len(items),
        elapsed_s=time.monotonic() - started_s,
        outcome=outcome,
    )
    return items, outcome, call


def _items_of(page: Item, key: str) -> Sequence[Item]:
    """Return the items of a page; those of an aggregated list stand by scope."""
    scopes = page.get("items")
    if isinstance(scopes, dict):
        parts = cast("Mapping[str, Item]", scopes).values()
        return [item for part in parts for item in cast("Sequence[Item]", part.get(key) or ())]
    return cast("Sequence[Item]", page.get(key) or ())


def _unread(page: Item) -> Iterator[str]:
    """Yield what the answer itself says it leaves out."""
    for key in ("unreachable", "unreachables"):
        yield from cast("Sequence[str]", page.get(key) or ())
    scopes = page.get("items")
    parts = {"": page, **(cast("Mapping[str, Item]", scopes) if isinstance(scopes, dict) else {})}
    for scope, part in parts.items():
        warning = cast("Item", part.get("warning") or {})
        if warning and warning.get("code") not in _HARMLESS_WARNINGS:
            yield scope or str(warning.get("message") or warning.get("code"))


def _outcome(error: GoogleListError | ScriptError, *, listed: bool) -> str:
    """Return what an error means: a disabled API and a place that does not exist hold no resources."""
    if isinstance(error, GoogleListError):
        if error.reason in _SERVICE_DISABLED and _NO_QUOTA_PROJECT not in str(error):
            return NOT_ENABLED
        if error.status == _MISSING or (error.status == _DENIED and not listed):
            return NO_SUCH_PLACE
    return str(error)


def _resources(reads: Sequence[_Read], scope: Scope) -> Iterator[FoundResource]:
    for read in reads:
        for item in read.items if read.kind else ():
            kind = cast("ResourceKind", read.kind)
            owner = kind.owner(item)
            if owner is not None and scope.wants(owner):
                yield resource_of(kind, item, project=read.project, owner=owner)


def _grants(reads: Sequence[_Read], scope: Scope) -> Iterator[FoundResource]:
    existing = [item for read in reads if read.kind and read.kind.kind == "service account" for item in read.items]
    owners = [owner for read in reads if read.kind for item in read.items if (owner := read.kind.owner(item))]
    accounts = accounts_of(scope, existing, owners)
    for read in reads:
        if read.holder is not None:
            for grant in grants_in(read.items[0], read.holder, accounts):
                if scope.wants(grant.owner):
                    yield grant


def _email(stack: str, project: str) -> str:
    try:
        return Names(project=project, stack=stack).account_email
    except NamingError:
        return ""
