"""What Google has of stacks: the resources under their labels, and those that their states name."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gemma_serving.cloud.capacity import ListedNode, capacity_kind, capacity_names
from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.google_api import GoogleApi, answer_of, lookup_resource
from gemma_serving.cloud.grants import PolicyHolder, account_of, bare, bindings_of, found_grant, members_of
from gemma_serving.cloud.kinds import BUCKET, BY_TYPE, GRANT, INSTANCE, NODE, QUEUED, SERVICE, Item, by_name, order_of
from gemma_serving.cloud.search import Scope, resource_of, search
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.proof import Asker, in_project
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.contracts.search_results import FoundResource, Inventory
from gemma_serving.contracts.stack_facts import StatedResource
from gemma_serving.contracts.three_answers import Answer, Present, Unknown
from gemma_serving.engine.backend import file_text, is_of_folder, shown_url
from gemma_serving.engine.runner import listed_stacks
from gemma_serving.engine.state import StackState, renamed
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.stack.costs import found_sentence
from gemma_serving.scripts.stack.deployed_server import server_of, unrecorded_names
from gemma_serving.scripts.stack.own_runs import backend_of_run, is_own, was_kept
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.scripts.stack.unfinished_teardown import remembered
from gemma_serving.stacks.apis import apis_of
from gemma_serving.stacks.loading import project_from_environment

_APIS: Final = {
    "gcp:projects": "cloudresourcemanager",
    **{type_.partition("/")[0]: kind.api for type_, kind in BY_TYPE.items()},
}
"""API by the first part of a type in a state."""
_SERVERS: Final = (QUEUED, INSTANCE, SERVICE, NODE)
_CAPACITY_OUTPUTS: Final = ("name", "nodeName")
_PROJECT_GRANT: Final = "gcp:projects/iAMMember:IAMMember"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedStacks:
    """One stack or all stacks, with all that is known of them before the first call to Google."""

    stack: str | None
    """None: all stacks of this product."""
    states: Sequence[StackState]
    settings: Mapping[str, Settings]
    projects: Sequence[str]
    """Google Cloud projects."""
    read_errors: Sequence[str] = ()
    pulumi_project: str = PRODUCT
    """Pulumi project of the stacks. Only those of this product have states and settings here."""
    is_name_known: bool
    """False if the state, which alone knows the former name of a renamed stack, is unreadable."""

    @property
    def apis(self) -> frozenset[str] | None:
        """APIs that the settings and states of the stacks use; None if a stack has neither.

        The settings count if the state is lost, and the state if the settings are unreadable.
        """
        found: set[str] = set()
        for state in self.states:
            settings, stated = self.settings.get(state.stack), _apis(state)
            if settings is None and not stated:
                return None
            found |= {*stated, *(apis_of(settings) if settings is not None else ())}
        return frozenset(found) or None

    @property
    def asker(self) -> Asker:
        """Who searches and deletes."""
        names = [name for state in self.states for name in (*stated_names(state), *unrecorded_names(state))]
        return Asker(
            project=self.pulumi_project,
            stack=self.stack,
            former=frozenset(filter(None, (state.former_name for state in self.states))),
            stated=frozenset(map(in_project, names)),
        )

    def scope(self, kept: Sequence[str]) -> Scope:
        """Return the scope of a search. `kept`: full names of retained resources."""
        settings = self.settings.values()
        zones = [zone for state in self.states for zone in state.zones]
        zones += [zone for item in settings if item.tpu for zone in item.tpu.zones]
        regions = [region for item in settings for region in item.regions]
        buckets = [bucket for state in self.states for bucket in state.buckets]
        buckets += [item.bucket.existing for item in settings if item.bucket.existing]  # other owners', with grants
        return Scope(
            projects=self.projects,
            asker=self.asker,
            stacks=[name for state in self.states for name in (state.stack, state.former_name) if name],
            places={"tpu": zones, "run": regions, "artifactregistry": regions},
            buckets=buckets,
            kept=kept,
            apis=self.apis,
        )


def _apis(state: StackState) -> frozenset[str]:
    """Return the APIs of the resources in a state."""
    items = (*state.pending, *state.resources)
    capacity = [as_mapping(item.get("inputs")) for item in items if item.get("type") == CAPACITY_TYPE]
    others = [_APIS.get(str(item.get("type")).partition("/")[0], "") for item in items]
    return frozenset(filter(None, [*others, *(by_name(capacity_kind(inputs)).api for inputs in capacity)]))


def searched_stacks(stack: str | None, states: Sequence[StackState]) -> SearchedStacks:
    """Return what the states and settings of stacks tell a search, with the pending creations of unfinished teardowns."""
    read_errors: list[str] = []
    settings: dict[str, Settings] = {}
    for state in states:
        if state.status != "read" and (stack or state.status != "missing"):
            why = f"Stack {state.stack} has no state." if state.status == "missing" else state.detail
            if state.is_cut_off:  # its detail sends to `gemma up`
                why = f"The state of stack {state.stack} is incomplete, so it cannot be read."
            read_errors.append(f"{why} Continuing without the state.")
        try:
            settings[state.stack] = stack_settings(state.stack)
        except CommandRefusedError as error:
            read_errors.append(f"{error} Continuing without the settings.")
    found = [remembered(state) for state in states]
    projects = [project for state in found for project in state.projects]
    projects += [item.project for item in settings.values()]
    projects += filter(None, [project_from_environment()])
    return SearchedStacks(
        stack=stack,
        states=found,
        settings=settings,
        projects=tuple(dict.fromkeys(projects)),
        read_errors=tuple(dict.fromkeys(read_errors)),
        is_name_known=stack is None or not any(_is_lost(state) for state in states),
    )


def _is_lost(state: StackState) -> bool:
    """Return whether the backend has, or may have, a state of which nothing can be read, nor of its copy."""
    return not state.raw and state.before is None and (state.status == "unreadable" or bool(file_text(state.stack)))


def search_stacks(
    api: GoogleApi,
    stacks: SearchedStacks,
    *,
    kept: Sequence[str] = (),
    clock: WaitClock | None = None,
    say: Callable[[str], None] | None = None,
) -> Inventory:
    """Return the resources of stacks in the order of deletion, each call, and every check that failed."""
    found = search(api, stacks.scope(kept), clock=clock, say=say)
    unknown = list(found.unknown)
    if not stacks.is_name_known and all(item.owner.stack != stacks.stack for item in found.found):
        unknown += [
            f"Stack {name} has resources and no state: if {stacks.stack}, whose state cannot be read, was renamed from {name}, "
            f"`gemma teardown {name}` deletes them."
            for name in _without_states(found.others)
        ]
    stated: list[FoundResource] = []
    for state in stacks.states:
        try:
            stated += existing_creations(api, state)
        except ScriptError as error:
            if not any(str(error) in sentence for sentence in unknown):
                unknown.append(f"Could not check the pending operations in the state of {state.stack}: {error}")
    each = {(item.kind, item.name): item for item in (*stated, *found.found)}.values()
    resources = sorted(each, key=lambda item: (order_of(item.kind), item.kind))
    return replace(found, found=tuple(resources), unknown=tuple(unknown))


def _without_states(names: frozenset[str]) -> Sequence[str]:
    """Return those of the stacks that the backend does not have; all if it cannot be read."""
    try:
        return sorted(names - listed_stacks("--project", PRODUCT)) if names else ()
    except ScriptError:
        return sorted(names)


def servers_in(found: Sequence[FoundResource]) -> Sequence[FoundResource]:
    """Return the machines and services among the resources of a stack."""
    return [item for kind in _SERVERS for item in found if item.kind == kind]


def require_name(stack: str) -> None:
    """Raise CommandRefusedError if the backend has the state of a stack under another name, and ScriptError if it cannot be read."""
    if text := renamed(stack):
        raise CommandRefusedError(f"{text} Nothing was changed.")


def without_state(stack: str, found: Sequence[FoundResource], unread: str = "") -> str:
    """Return the resources of a stack of which this backend has no state, what was not read, and who may have it, in sentences."""
    servers, before, url = servers_in(found), backend_of_run(stack), shown_url()
    runs = f"Google has resources of stack {stack}"
    if servers:
        since = f" since {servers[0].created[:16].replace('T', ' ')} UTC" if servers[0].created else ""
        runs = f"Stack {stack} runs in {servers[0].location}{since}"
    where = f" This folder deployed it with `pulumi login {shlex.quote(before)}`." if before not in {"", url} else ""
    return f"{runs}. {found_sentence(found, unread)} The backend {url} has no state of it.{where}"


def pending_creations(state: StackState) -> Iterator[StatedResource]:
    """Yield the pending creations of the state that have a separate name. Labels, which every search finds, mark the others."""
    for item in state.pending:
        inputs, type_ = as_mapping(item.get("inputs")), str(item.get("type"))
        with suppress(KeyError):  # an input of the name is missing
            if type_ == CAPACITY_TYPE and (found := server_of(item)).names:
                yield found
            elif type_ in BY_TYPE:
                kind, project = BY_TYPE[type_], str(inputs.get("project") or "")
                yield StatedResource(kind=kind.kind, names=[kind.named(inputs)], project=project, inputs=inputs)


def stated_names(state: StackState) -> Iterator[str]:
    """Yield the full names in Google Cloud of the resources in a state, and of the node of a queued resource."""
    for item in state.resources:
        inputs, outputs = as_mapping(item.get("inputs")), as_mapping(item.get("outputs"))
        type_ = str(item.get("type"))
        if type_ == CAPACITY_TYPE:
            yield from (str(outputs[key]) for key in _CAPACITY_OUTPUTS if outputs.get(key))
        elif type_ in BY_TYPE:
            yield str(item.get("id"))
            with suppress(KeyError):
                yield BY_TYPE[type_].named(inputs)


def doubt(state: StackState, *, renamed: bool = True) -> str:
    """Return why a state is no proof of what its stack owns, as a sentence; empty if it is one. `renamed` False: a rename is no doubt.

    Whoever makes a folder can bring a backend with it, and the name before a rename is a word of the state alone.
    """
    if renamed and state.former_name:
        return state.rename
    if is_of_folder() and state.resources and not is_own(state.stack, has_server=state.has_server):
        return f"The backend {shown_url()} of stack {state.stack} is named by Pulumi.yaml, and this machine did not deploy what its state names."
    return ""


def unstated(stacks: SearchedStacks, found: Sequence[FoundResource]) -> Sequence[FoundResource]:
    """Return the found resources that no state of this backend names: another folder with a stack of this name may have made them.

    A bucket that this folder's teardown kept is its own, if nothing else of the stack was made since.
    """
    proven = [state for state in stacks.states if not doubt(state)]
    inputs = [_inputs(item) for state in proven for item in (*state.pending, *state.resources)]
    grants = {(str(one.get("role")), bare(str(one.get("member")))) for one in inputs}
    titles = {str(one.get("displayName")) for state in proven for one in map(_inputs, state.pending)}
    names = {in_project(name) for state in proven for name in (*stated_names(state), *_requested(state))}

    def is_stated(item: FoundResource) -> bool:
        document = item.document
        if item.kind == GRANT:
            grant = (str(document["role"]), bare(str(document["member"])))
            return bool(document.get("stated")) or grant in grants or in_project(account_of(item)) in names
        request = f"{item.name.partition('/nodes/')[0]}/queuedResources/{ListedNode(document).request}"
        return not names.isdisjoint(map(in_project, (item.name, request))) or document.get("displayName") in titles

    others = [item for item in found if not is_stated(item)]
    are_kept = all(item.kind == BUCKET and was_kept(item.owner.stack, item.created) for item in others)
    return [] if are_kept else others


def _requested(state: StackState) -> Iterator[str]:
    """Yield the full names of unfinished creations, and of the requests for capacity in each zone that an operation tried."""
    yield from (name for item in pending_creations(state) for name in item.names)
    for item in state.resources:
        outputs = as_mapping(item.get("outputs"))
        if item.get("type") == CAPACITY_TYPE:
            zones = (outputs.get("zone"), *as_sequence(outputs.get("triedZones")))
            yield from capacity_names(_inputs(item), [*filter(None, zones)])


def _inputs(item: Item) -> Item:
    return as_mapping(item.get("inputs"))


def existing_creations(api: GoogleApi, state: StackState) -> Iterator[FoundResource]:
    """Yield the pending creations that exist, because a list may show them later than a GET, and the grants of the state.

    Raises ScriptError if Google does not tell whether one exists.
    """
    for item in pending_creations(state):
        kind = by_name(item.kind)
        for name in item.names:
            match lookup_resource(api, kind, name):
                case Present(value=document):
                    owner = kind.owner(document)
                    if owner is not None and owner in {state.owner, replace(state.owner, stack=state.former_name)}:
                        project = str(item.project or next(iter(state.projects), ""))
                        yield resource_of(kind, document, project=project, owner=owner)
                case Unknown(cause=cause, why=why) if cause != "denied":
                    raise ScriptError(why)
                case _:
                    continue  # Google returns 403 for a location or an account that does not exist; the list is the proof
    yield from _stated_grants(api, state)


def _stated_grants(api: GoogleApi, state: StackState) -> Iterator[FoundResource]:
    """Yield the grants on a project that the state has and that exist. Raises ScriptError."""
    policies: dict[str, Answer[Item]] = {}
    for item in (*state.pending, *state.resources):
        if item.get("type") != _PROJECT_GRANT:
            continue
        inputs = as_mapping(item.get("inputs"))
        project = str(inputs.get("project"))
        holder = PolicyHolder(kind="project", project=project, name=f"projects/{project}")
        role, member = str(inputs.get("role")), str(inputs.get("member"))
        given = as_mapping(inputs.get("condition"))
        condition = {key: value for key, value in given.items() if key in {"title", "description", "expression"}}
        if project not in policies:
            policies[project] = answer_of(holder.api, partial(holder.read, api))
        policy = policies[project]
        if isinstance(policy, Unknown):
            raise ScriptError(policy.why)
        for binding in bindings_of(policy.value) if isinstance(policy, Present) else ():
            same = binding.get("role") == role and as_mapping(binding.get("condition")) == condition
            if same and member in members_of(binding):
                found = found_grant(holder, role, member, condition, state.owner)
                yield replace(found, labels={}, document={**found.document, "stated": True})
