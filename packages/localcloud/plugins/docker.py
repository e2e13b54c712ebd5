"""Stand-in for the `docker` provider: simulated image builds and pushes.

No Docker engine is needed, and nothing is built. A push informs the local cloud's registry that the image exists. An image's digest is
computed from the inputs of a build (context, Dockerfile, arguments, target, platform), so it changes exactly when the image does. Images
that were not built here have a digest of their name and triggers. Deleting deletes nothing, as in the real provider.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from localcloud.plugins.checking import DEFAULTS_KEY, CheckReply, Failure, Naming, check
from localcloud.plugins.contexts import Build, context_digest, manifest_digest
from localcloud.plugins.diffing import Detail, Details, Difference, DiffKind, compare
from localcloud.plugins.inputs import predicted, secret_paths
from localcloud.plugins.lifecycle import Created, ReadReply
from localcloud.plugins.rest import PluginError, RestTransport, TransportReply, bearer
from localcloud.plugins.schema import PropertySpec, PropertySpecs, block, flag, listing, outputs, text, texts_by_key
from localcloud.plugins.values import UNKNOWN, Path, Properties, Value, has_unknown, is_object, text_of

VERSION: Final = "5.2.0"

_IMAGE: Final = "docker:index/image:Image"
_REGISTRY_IMAGE: Final = "docker:index/registryImage:RegistryImage"
_DEFAULT_REGISTRY: Final = "docker.io"

_IMAGE_FIELDS: Final[Mapping[str, PropertySpec]] = {
    "imageName": text(required=True),
    "skipPush": flag(default=False),
    "buildOnPreview": flag(default=False),
    "build": block(
        {
            "addHosts": listing(text()),
            "args": texts_by_key(),
            "builderVersion": text(),
            "cacheFrom": block({"images": listing(text())}),
            "context": text(default="."),
            "dockerfile": text(),
            "network": text(),
            "platform": text(),
            "target": text(),
            "contextDigest": text(),
        }
    ),
    "registry": block({"server": text(), "username": text(), "password": text(secret=True)}),
    **outputs(
        baseImageName=text(),
        context=text(),
        dockerfile=text(),
        platform=text(),
        registryServer=text(),
        repoDigest=text(),
    ),
}

_REGISTRY_IMAGE_FIELDS: Final[Mapping[str, PropertySpec]] = {
    "name": text(autoname=True, force_new=True),
    "keepRemotely": flag(default=False),
    "insecureSkipVerify": flag(default=False),
    "triggers": texts_by_key(force_new=True),
    "authConfig": block({"address": text(required=True), "username": text(), "password": text(secret=True)}),
    **outputs(sha256Digest=text()),
}

_TYPES: Final[Mapping[str, PropertySpecs]] = {_IMAGE: _IMAGE_FIELDS, _REGISTRY_IMAGE: _REGISTRY_IMAGE_FIELDS}
_SETTINGS: Final = frozenset(
    {
        "caMaterial",
        "certMaterial",
        "certPath",
        "context",
        "host",
        "keyMaterial",
        "registryAuth",
        "sshOpts",
        "version",
        "pluginDownloadURL",
    }
)


def _fields(type_name: str) -> PropertySpecs:
    fields = _TYPES.get(type_name)
    if fields is None:
        known = ", ".join(sorted(_TYPES))
        raise PluginError(f"the local docker stand-in does not support the resource type {type_name}, only {known}")
    return fields


class DockerProvider:
    """The `docker` package."""

    name = "docker"
    version = VERSION

    def __init__(self, transport: RestTransport, *, token: str | None) -> None:
        self._registry: dict[str, str] = {}
        self._push = _Pusher(transport=transport, token=token)

    def check_config(self, news: Properties) -> tuple[Failure, ...]:
        """Accept the real provider's settings, which have no effect here, and reject others."""
        reason = "the local docker stand-in does not support this provider setting"
        return tuple(Failure(path=name, reason=f"{reason}: {name}") for name in news if name not in _SETTINGS)

    def configure(self, configuration: Properties) -> "DockerSession":
        """Start a session. All sessions share the images pushed so far."""
        del configuration
        return DockerSession(registry=self._registry, pusher=self._push)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pusher:
    """Pushes to the registries of the local cloud."""

    transport: RestTransport
    token: str | None = field(repr=False)

    async def push(self, name: str, digest: str) -> None:
        """Store the image's digest under its name. Raise PluginError with docker's message if the registry rejects it."""
        host, _, path = name.partition("@")[0].partition("/")
        if not host.endswith("-docker.pkg.dev"):
            return
        repository, colon, tag = path.rpartition(":")
        path = f"registry/{host}/v2/{repository if colon else tag}/manifests/{tag if colon else 'latest'}"
        headers = {**bearer(self.token), "Content-Type": "application/json"}
        reply = await self.transport.send("PUT", path, {}, headers, json.dumps({"digest": digest}).encode())
        if reply.status >= HTTPStatus.BAD_REQUEST:
            raise PluginError(f"error pushing image: {_refusal(reply)}")


def _refusal(reply: TransportReply) -> str:
    """Return docker's message for a rejected push."""
    errors = json.loads(reply.text or "{}").get("errors")
    if not errors:
        return f"received unexpected HTTP status: {reply.status}"
    found = errors[0]
    return f"{str(found['code']).lower().replace('_', ' ')}: {found['message']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSession:
    """A configured provider. `registry` holds the digests of images pushed so far, by name."""

    registry: dict[str, str] = field(repr=False)
    pusher: "_Pusher" = field(repr=False)

    def check(self, type_name: str, news: Properties, olds: Mapping[str, Value], naming: Naming) -> CheckReply:
        """Check inputs. An image's build gets the digest of its context, so a changed file is a difference."""
        checked = check(type_name, _fields(type_name), _without_digest(news), olds, naming)
        if type_name != _IMAGE or checked.failures or has_unknown(checked.inputs.get("build")):
            return checked
        try:
            digest = context_digest(_build(checked.inputs))
        except (PluginError, OSError) as error:
            return CheckReply(inputs=checked.inputs, failures=(Failure(path="build.context", reason=str(error)),))
        build = checked.inputs.get("build")
        hashed: Properties = {**(build if is_object(build) else {"context": "."}), "contextDigest": digest}
        inputs: Properties = {**checked.inputs, "build": hashed}
        return CheckReply(inputs=inputs, failures=())

    def diff(self, type_name: str, state: Properties, news: Properties) -> Difference:
        """Compare the state with new inputs. Ignore a registry's user and password, which change with every login."""
        fields = _fields(type_name)
        details = compare(fields, state, news)
        kept: Details = {path: detail for path, detail in details.items() if not _is_login(path)}
        if type_name == _IMAGE and kept:
            kept["repoDigest",] = Detail(change=DiffKind.UPDATE)
        return Difference(details=kept, delete_first=False)

    def preview_create(self, type_name: str, inputs: Properties) -> Properties:
        """Return the state before a build, in which only the digest is unknown."""
        fields = _fields(type_name)
        if type_name != _IMAGE or has_unknown({name: value for name, value in inputs.items() if name != DEFAULTS_KEY}):
            return predicted(fields, inputs)
        return {**_image_state(inputs, ""), "repoDigest": UNKNOWN}

    def preview_update(self, type_name: str, state: Properties, news: Properties) -> Properties:
        """Return the state before a build, or the unchanged state if nothing changes."""
        return self.preview_create(type_name, news) if self.diff(type_name, state, news).details else state

    async def create(self, type_name: str, inputs: Properties, *, limit_s: float) -> Created:
        """Compute the digest and store it in the registry."""
        del limit_s
        _fields(type_name)
        if type_name == _IMAGE:
            digest = manifest_digest(_build(inputs))
            name = text_of(inputs, "imageName")
            if inputs.get("skipPush") is not True:
                await self.pusher.push(name, digest)
                self.registry[name] = digest
            return Created(id=name, state=_image_state(inputs, digest))
        return self._registry_image(inputs)

    def _registry_image(self, inputs: Properties) -> Created:
        name = text_of(inputs, "name")
        triggers = inputs.get("triggers")
        seed = [name, *(f"{key}={value}" for key, value in sorted(triggers.items()))] if is_object(triggers) else [name]
        digest = self.registry.get(name) or "sha256:" + hashlib.sha256("\0".join(seed).encode()).hexdigest()
        self.registry[name] = digest
        state = {key: value for key, value in inputs.items() if key != DEFAULTS_KEY}
        return Created(id=digest, state={**state, "sha256Digest": digest})

    async def read(self, type_name: str, resource_id: str, inputs: Properties, state: Properties) -> ReadReply | None:
        """Return the state unchanged, as the real provider does."""
        if not inputs:
            raise PluginError(f"{type_name} {resource_id!r} cannot be imported")
        return ReadReply(created=Created(id=resource_id, state=state), inputs=inputs)

    async def update(
        self, type_name: str, resource_id: str, state: Properties, news: Properties, *, limit_s: float
    ) -> Created:
        """Build again."""
        del state
        created = await self.create(type_name, news, limit_s=limit_s)
        return Created(id=resource_id, state=created.state)

    async def delete(self, type_name: str, resource_id: str, state: Properties, *, limit_s: float) -> None:
        """Forget a pushed image unless `keepRemotely` is set. Local images stay, as with the real provider."""
        del limit_s, resource_id
        if type_name == _REGISTRY_IMAGE and state.get("keepRemotely") is not True:
            self.registry.pop(text_of(state, "name"), None)

    async def invoke(self, function: str, arguments: Properties) -> Properties:
        """Raise PluginError because the package has no data sources."""
        del arguments
        raise PluginError(f"the local docker stand-in does not support the function {function}")

    def secret_paths(self, type_name: str) -> frozenset[Path]:
        """Return the paths of passwords."""
        fields = _TYPES.get(type_name)
        return secret_paths(fields) if fields else frozenset()


def _is_login(path: Path) -> bool:
    return path[0] in {"registry", "authConfig"} and path[-1] in {"password", "username"}


def _without_digest(news: Properties) -> Properties:
    build = news.get("build")
    if not is_object(build):
        return news
    return {**news, "build": {name: value for name, value in build.items() if name != "contextDigest"}}


def _build(inputs: Mapping[str, Value]) -> Build:
    given = inputs.get("build")
    build = dict(given) if is_object(given) else {}
    context = text_of(build, "context") or "."
    args = build.get("args")
    return Build(
        context=context,
        dockerfile=text_of(build, "dockerfile") or f"{context.rstrip('/')}/Dockerfile",
        args={name: str(value) for name, value in args.items()} if is_object(args) else {},
        target=text_of(build, "target"),
        platform=text_of(build, "platform"),
    )


def _image_state(inputs: Properties, digest: str) -> Properties:
    """Return the outputs of an image that its next diff compares with."""
    name = text_of(inputs, "imageName")
    build = _build(inputs)
    registry = inputs.get("registry")
    server = text_of(registry, "server") if is_object(registry) else ""
    repository = name.partition("@")[0]
    untagged = repository.rpartition(":")[0] if ":" in repository.rpartition("/")[2] else repository
    state: Properties = {each: value for each, value in inputs.items() if each in _IMAGE_FIELDS}
    state |= {
        "imageName": name,
        "baseImageName": name,
        "context": build.context,
        "dockerfile": build.dockerfile,
        "platform": build.platform or "linux/amd64",
        "registryServer": server or _host(name),
        "repoDigest": digest if inputs.get("skipPush") is True else f"{untagged}@{digest}",
    }
    return state


def _host(name: str) -> str:
    first = name.partition("/")[0]
    return first if "/" in name and ("." in first or ":" in first or first == "localhost") else _DEFAULT_REGISTRY
