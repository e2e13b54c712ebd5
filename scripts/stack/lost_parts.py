"""What Google no longer has of a stack: each resource that its state names, and what its server reads at the next start.

The server itself is not among it (`deployed_server`). Not looked at: images outside Artifact Registry, and Google's own service identities.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import requests
from google.auth.exceptions import GoogleAuthError

from gemma_serving.cloud.google_api import GoogleApi, answer_of, connect, lookup, lookup_resource
from gemma_serving.cloud.google_session import GoogleCallError
from gemma_serving.cloud.grants import PolicyHolder, bare, bindings_of, holder_of, members_of
from gemma_serving.cloud.kinds import (
    ACCOUNT,
    BUCKET,
    BY_TYPE,
    FIREWALL,
    NETWORK,
    POLICIES,
    REPOSITORY,
    ROUTER,
    SECRET,
    SUBNETWORK,
    by_name,
)
from gemma_serving.cloud.registry import ask_registry
from gemma_serving.contracts.compile_cache import ARCHIVE_PREFIX
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.parallel import each
from gemma_serving.contracts.resource_types import BUCKET_TYPE, SERVICE_TYPE
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY, REPOSITORIES_METADATA_KEY, image_in
from gemma_serving.contracts.stack_facts import LostPart, StatedResource
from gemma_serving.contracts.staged_weights import MODELS_FOLDER
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.engine.state import Item, StackState
from gemma_serving.planning.settings.image import in_artifact_registry
from gemma_serving.planning.units import number_of
from gemma_serving.scripts.stack.deployed_server import secret_versions, serving

_AT_ONCE: Final = 8
_NOT_FOUND: Final = 404
_NAT_TYPE: Final = "gcp:compute/routerNat:RouterNat"
_VERSION_TYPE: Final = "gcp:secretmanager/secretVersion:SecretVersion"
LOOKED_AT: Final = frozenset({*BY_TYPE, *POLICIES, _NAT_TYPE, _VERSION_TYPE}) - {SERVICE_TYPE}
"""Types of resources that are looked at by their name."""
_NO_WAY_OUT: Final = "so no server can start: it reaches neither its image nor its weights"
_EFFECTS: Final[Mapping[str, str]] = {
    ACCOUNT: "so no server can start: it runs as this account",
    BUCKET: "so no server can start from its files",
    REPOSITORY: "so no server can start from an image in it",
    SECRET: "so no server that reads it can start",
    NETWORK: "so no server can start in it",
    SUBNETWORK: "so no server can start in it",
    ROUTER: _NO_WAY_OUT,
    FIREWALL: "so a server that starts may reach nothing, or not be reached",
}
"""Consequence for the next start, by kind. The other kinds, such as alerts, have none."""
_WEIGHTS: Final = re.compile(
    rf"gs://(?P<bucket>[\w.-]+)/?(?P<folder>[^\s\"',]*)|{MODELS_FOLDER}/?(?P<mounted>[^\s\"',]*)"
)

_Check = Callable[[], Sequence[LostPart]]
"""Looks at one thing. Raises ScriptError if it may exist."""


def lost_parts(state: StackState) -> Answer[Sequence[LostPart]]:
    """Return what no longer exists. `unread`: what may exist and could not be looked at. Raises CommandRefusedError without credentials."""
    found = each([partial(_tried, check) for check in _checks(state)], workers=_AT_ONCE)
    lost = [part for parts, _ in found for part in parts]
    unread = [why for _, why in found if why]
    why = f"{unread[0]}{f', and {len(unread) - 1} more' if len(unread) > 1 else ''}" if unread else ""
    return Unknown(why) if unread and not lost else Present(lost, unread=why)


def _tried(check: _Check) -> tuple[Sequence[LostPart], str]:
    try:
        return check(), ""
    except ScriptError as error:
        return (), str(error).rstrip(".")


def _checks(state: StackState) -> Iterator[_Check]:
    api, items = connect(*state.projects[:1]), list(state.by_urn.values())
    project = next(iter(state.projects), "")
    holders = dict[PolicyHolder, list[Item]]()
    for item in items:
        type_, inputs = str(item.get("type")), as_mapping(item.get("inputs"))
        if type_ in POLICIES:
            holders.setdefault(holder_of(type_, inputs, project), []).append(_stated(item))
        elif type_ == _NAT_TYPE:
            yield partial(_nat, api, inputs)
        elif type_ in BY_TYPE and type_ != SERVICE_TYPE:
            yield partial(_resource, api, state.stack, item)
    for holder, grants in holders.items():
        yield partial(_grants, api, holder, grants)
    stated = [str(item.get("id")) for item in items if item.get("type") == _VERSION_TYPE]
    for version in dict.fromkeys([*secret_versions(state).values(), *stated]):
        yield partial(_version, api, version)
    if (server := serving(state)) is not None:
        own = {str(item.get("id")) for item in items if item.get("type") == BUCKET_TYPE}
        for bucket, folder in weights_of(server):
            yield partial(_weights, state.stack, project, bucket, folder, is_own=bucket in own)
        yield partial(_image, api, image_of(server))


def _stated(item: Item) -> Item:
    """Return inputs and outputs of an entry of a state: a provider states a condition in the one, or in both."""
    return {**as_mapping(item.get("inputs")), **as_mapping(item.get("outputs"))}


def _exists(answer: Answer[Item], text: str) -> Item | None:
    """Return a document; None if it does not exist. Raises ScriptError."""
    match answer:
        case Present(value=document):
            return document
        case Absent():
            return None
        case Unknown(why=why):
            raise ScriptError(f"{text}: {why}")


def _gone(text: str, effect: str = "") -> Sequence[LostPart]:
    return [LostPart(f"{text[0].upper()}{text[1:]} no longer exists{f', {effect}' if effect else ''}.")]


def _resource(api: GoogleApi, stack: str, item: Item) -> Sequence[LostPart]:
    kind, inputs, stated = BY_TYPE[str(item.get("type"))], as_mapping(item.get("inputs")), str(item.get("id"))
    name = f"projects/_/buckets/{stated}" if kind.kind == BUCKET else stated
    name = name if name.startswith("projects/") else kind.named(inputs)
    where = inputs.get("region") or inputs.get("location")
    title = inputs.get("displayName") if kind.api == "monitoring" else None  # Google names these by a number
    text = f"{kind.kind} {title or name.rpartition('/')[2]}{f' in {where}' if where else ''}"
    if _exists(lookup_resource(api, kind, name), text) is not None:
        return ()
    again = f". If it had the weights, run `gemma stage_model {stack}` after `gemma up {stack}`"
    return _gone(text, _EFFECTS.get(kind.kind, "") + (again if kind.kind == BUCKET else ""))


def _nat(api: GoogleApi, inputs: Item) -> Sequence[LostPart]:
    name, region, kind = inputs.get("name"), inputs.get("region"), by_name(ROUTER)
    text = f"NAT {name} in {region}"
    router = _exists(lookup_resource(api, kind, kind.named({**inputs, "name": inputs.get("router")})), text)
    names = [as_mapping(nat).get("name") for nat in as_sequence(as_mapping(router).get("nats"))]
    return () if name in names else _gone(text, _NO_WAY_OUT)


def _version(api: GoogleApi, version: str) -> Sequence[LostPart]:
    found = _exists(lookup(api, "secretmanager", f"v1/{version}"), version)
    if found is None:
        return _gone(f"secret version {version}", _EFFECTS[SECRET])
    state = found.get("state")
    if not state:
        raise ScriptError(f"Google answered a request for {version} without its state")
    lost = LostPart(f"Secret version {version} is {state}, {_EFFECTS[SECRET]}.")
    return () if state == "ENABLED" else [lost]


def _grants(api: GoogleApi, holder: PolicyHolder, stated: Sequence[Item]) -> Sequence[LostPart]:
    """Look at the grants on one resource. Those of a deleted account stay as grants of no one, and Google adds none beside them."""
    policy = _exists(answer_of(holder.api, lambda: holder.read(api)), f"the grants on {holder.name}")
    held = [(binding, member) for binding in bindings_of(policy or {}) for member in members_of(binding)]
    keys = {_key(binding, member) for binding, member in held}
    lost = [grant for grant in stated if _key(grant, str(grant.get("member"))) not in keys]
    if not lost:
        return ()
    members = {str(grant.get("member")) for grant in lost}
    old = [(one, member) for one, member in held if bare(member) in members and bare(member) != member]
    commands = [holder.command(str(one.get("role")), member, as_mapping(one.get("condition"))) for one, member in old]
    if len(commands) >= len(lost):
        went = f"{number_of(len(lost), 'grant')} on {holder.name} went with a deleted account."
        return [LostPart(went, commands=commands)]
    roles = ", ".join(str(grant.get("role")) for grant in lost)
    who = " and ".join(sorted(members)).replace("serviceAccount:", "")
    return [LostPart(f"On {holder.name}, {who} no longer has {roles}, so a server that starts is denied it.")]


def _key(grant: Item, member: str) -> tuple[str, str, str]:
    condition = {key: value for key, value in as_mapping(grant.get("condition")).items() if value}
    return str(grant.get("role")), member, json.dumps(condition, sort_keys=True)


def _weights(stack: str, project: str, bucket: str, folder: str, *, is_own: bool) -> Sequence[LostPart]:
    from gemma_serving.stacks.bucket_weights import StagedWeights  # noqa: PLC0415 - loads the settings

    command = f"gemma stage_model {stack}"
    staged = StagedWeights(
        project=project, bucket=bucket, prefix=folder, stack=stack, command=command, existing=not is_own
    )
    try:
        fault = asyncio.run(staged.found())
    except GoogleCallError as error:
        raise ScriptError(f"the weights in {staged.folder}: {error}") from None
    if fault is None or not fault.blocks:
        return ()
    return [LostPart(f"{fault.text}, so no server can start from them. Run `{command}`.", fix=command)]


def _image(api: GoogleApi, image: str) -> Sequence[LostPart]:
    repository, _, digest = image.partition("@")
    if not digest or not in_artifact_registry(repository):
        return ()
    try:
        answer = ask_registry(repository, digest, api.session)
    except (requests.RequestException, GoogleAuthError) as error:
        raise ScriptError(f"image {image}: the registry gave no usable response ({type(error).__name__})") from None
    if answer.status_code == _NOT_FOUND:
        return _gone(f"image {image}", "so no server can start from it")
    if not answer.ok:
        raise ScriptError(f"image {image}: the registry returned HTTP {answer.status_code}")
    return ()


def image_of(server: StatedResource) -> str:
    """Return the image that a server runs, in the region of its machine."""
    document, containers = _document(server), _containers(server)
    if not document:
        return str(containers[0].get("image") or "") if containers else ""
    repositories = as_mapping(json.loads(server.metadata(REPOSITORIES_METADATA_KEY) or "{}"))
    region = str(server.outputs.get("zone") or "").rpartition("-")[0]
    return image_in(region, str(document.get("image") or ""), {key: str(value) for key, value in repositories.items()})


def weights_of(server: StatedResource) -> Sequence[tuple[str, str]]:
    """Return bucket and folder of each checkpoint that a server reads from a bucket, as its own words name them."""
    template = as_mapping(server.inputs.get("template"))
    volumes = [as_mapping(as_mapping(one).get("gcs")).get("bucket") for one in as_sequence(template.get("volumes"))]
    mounted = next((str(bucket) for bucket in volumes if bucket), "")
    words = [_document(server), *(one.get("args") for one in _containers(server))]  # the command is our program
    found = dict[tuple[str, str], None]()
    for match in _WEIGHTS.finditer(json.dumps(words).replace('\\"', '"')):
        bucket, folder = match["bucket"] or mounted, (match["folder"] or match["mounted"] or "").strip("/")
        if bucket and not folder.startswith(ARCHIVE_PREFIX):
            found[bucket, folder] = None
    return list(found)


def _document(server: StatedResource) -> Item:
    return as_mapping(json.loads(server.metadata(DOCUMENT_METADATA_KEY) or "{}"))


def _containers(server: StatedResource) -> Sequence[Item]:
    return [as_mapping(one) for one in as_sequence(as_mapping(server.inputs.get("template")).get("containers"))]


def old_grants_sentence(stack: str, lost: Sequence[LostPart]) -> str:
    """Return what must run before an `up`, because Google adds no grant beside one of the deleted account; empty if nothing must."""
    commands = [command for part in lost for command in part.commands]
    if not commands:
        return ""
    lines = "\n".join(f"  {command}" for command in commands)
    count = number_of(len(commands), "grant")
    return f"Google keeps {count} of a deleted account, and adds none beside them. Nothing was changed. Run these, then `gemma up {stack}`:\n{lines}"
